"""Reports to render: made-up figures in the shape that a run gives, from a few layers to very many."""

import math
import random

OPS = ["Conv", "Conv", "Conv", "Relu", "MaxPool", "Gemm", "Softmax", "Add"]


def stages():
    return [
        dict(name="Pre-process", start=0, seconds=1.9, peak_memory_bytes=180 << 20, disk_bytes=98 << 20, bound="disk", share=0.39),
        dict(name="Float Model Validation", start=1.1, seconds=0.7, peak_memory_bytes=180 << 20, bound="compute", share=0.31),
        dict(
            name="Calibration",
            start=1.9,
            seconds=22.4,
            peak_memory_bytes=512 << 20,
            flops=1.05e12,
            memory_bytes=190e9,
            disk_bytes=900 << 20,
            bound="memory",
            share=0.77,
            advice="The samples are run one by one: --batch 8 reads each weight once for eight samples.",
        ),
        dict(
            name="Fast Finetune",
            start=24.3,
            seconds=8.2,
            peak_memory_bytes=700 << 20,
            flops=7.9e11,
            memory_bytes=2.2e10,
            bound="compute",
            share=0.82,
            advice="Fewer --finetune-steps; the error stands still after step 600.",
        ),
        dict(
            name="Post-process",
            start=32.5,
            seconds=3.0,
            peak_memory_bytes=230 << 20,
            disk_bytes=25 << 20,
            bound="waiting",
            share=0.06,
            advice="The last sync to disk was waited for.",
        ),
    ]


def layers(number, rng):
    result = []
    for i in range(number):
        op = OPS[i % len(OPS)]
        flops = 10 ** rng.uniform(6.5, 10) if op in ("Conv", "Gemm") else 10 ** rng.uniform(5, 7)
        moved = 10 ** rng.uniform(5.5, 8)
        slow = rng.uniform(1.1, 5)
        compute, memory = flops / 1.17e11, moved / 1.1e10
        result.append(
            dict(
                name=f"/model/backbone/stage{i // 16}/block{i // 4}/{op.lower()}_{i}/{op}",
                op_type=op,
                seconds=slow * max(compute, memory),
                flops=flops,
                memory_bytes=moved,
                bound="compute" if compute > memory else "memory",
                share=1 / slow,
                macs=flops / 2,
                sqnr_db=None if i % 41 == 40 else 46 - 18 * i / number + rng.gauss(0, 3),
                cosine=1.0 if i % 41 == 40 else 1 - 10 ** rng.uniform(-6, -2),
                **({"reason": "3 of 64 channels are 16 times as large", "suggestion": "--set equalize"} if i % 5 == 4 else {}),
            )
        )
    return result


def tensor(i, rng, bins):
    low, high = -rng.uniform(0.5, 4), rng.uniform(2, 9)
    edges = [low + (high - low) * k / bins for k in range(bins + 1)]
    counts = [int(1e7 * math.exp(-((edges[k] - 0.2) ** 2) * rng.uniform(0.8, 1.2))) for k in range(bins)]
    counts[-1] += 3
    chosen = [low * 0.97, high * rng.uniform(0.4, 1)]
    outside = sum(n for k, n in enumerate(counts) if edges[k] > chosen[1] or edges[k + 1] < chosen[0])
    return dict(
        name=f"/model/backbone/block{i // 4}/act_{i}/output_0",
        made_by=f"/model/backbone/block{i // 4}/act_{i} (Relu)",
        method="percentile",
        range=chosen,
        observed=[low, high],
        scale=(chosen[1] - chosen[0]) / 255,
        zero_point=round(-chosen[0] / (chosen[1] - chosen[0]) * 255) - 128,
        clipped_share=outside / sum(counts),
        histogram=dict(edges=edges, counts=counts),
    )


def full(layer_count=60, tensor_count=40, bins=120, seed=7):
    rng = random.Random(seed)
    return {
        "title": "resnet50.onnx, quantized to int8",
        "version": "0.1.0",
        "command": [
            "detent",
            "quantize",
            "resnet50.onnx",
            "-o",
            "out.onnx",
            "--report",
            "out.html",
            "--set",
            "tensor-method=x y=mse",
        ],
        "verdict": "Calibration took 63 % of the time and reached 77 % of the memory's speed: "
        "--batch 8 would read each weight an eighth as often.",
        "summary": {
            "seconds": 35.5,
            "cpu_seconds": 58.25,
            "peak_memory_bytes": 734003200,
            "disk_read_bytes": 1042120000,
            "disk_written_bytes": 26400000,
            "samples": 128,
            "model_bytes_before": 102400000,
            "model_bytes_after": 25900000,
            "nodes_quantized": 112,
            "nodes_in_float": 3,
            "latency": {
                "before": {"median_seconds": 0.0501, "waiting_share": 0.02},
                "after": {"median_seconds": 0.0313, "ratio": 0.625, "ratio_low": 0.6, "ratio_high": 0.66, "runs": 40},
                "threads": 2,
                "synthetic": False,
            },
        },
        "machine": {"threads": 2, "flops_per_second": 1.17e11, "memory_bytes_per_second": 1.1e10, "disk_bytes_per_second": 1.4e8},
        "stages": stages(),
        "layers": layers(layer_count, rng),
        "tensors": [tensor(i, rng, bins) for i in range(tensor_count)],
        "plan": [
            {"what": "peak memory", "unit": "bytes", "predicted": 6.9e8, "measured": 734003200},
            {"what": "bytes read", "unit": "bytes", "predicted": 1.0e9, "measured": 1042120000},
            {"what": "time", "unit": "seconds", "predicted": 31, "measured": 35.5},
        ],
        "notes": [
            "Direct I/O is not supported by the file system: read through the page cache.",
            "MatMul /head/MatMul_2 stays in float: its weight is no constant.",
        ],
        "outcome": {
            "answer": "look",
            "headline": "Look at it before you use it: the outputs stay within 4.3 % of the float model's, "
            "and it is 1.6 times as fast and 4.0 times smaller.",
            "reasons": ["Accuracy was measured on 4 samples only; 8 or more say more about other inputs."],
        },
        "kept": [
            {"node": "Conv '/model/stem/conv'", "why": "in float, for accuracy", "error_share": 0.31, "macs_share": 0.02},
            {"node": "Softmax '/model/head/softmax'", "why": "in float, faster so on this machine"},
        ],
        "accuracy": {
            "samples": 4,
            "sqnr_db": 27.4,
            "worst_sample_db": 19.9,
            "cosine": 0.99951,
            "integer_macs": 0.981,
            "weights_share": 0.4,
            "equalized": [{"value": "/model/block1/act_3", "error_before": 6e-3, "error_after": 8e-4}],
            "tuned": {"error_before": 2.5e-3, "error_after": 2.6e-3, "kept": False},
        },
        "compared_samples": 4,
        "outputs": [{"name": "logits", "sqnr_db": 27.4, "cosine": 0.99951}, {"name": "mask", "sqnr_db": None, "cosine": 1.0}],
    }


def work(device, lane, name, count, seconds, size, flops=0.0, bound=None, share=None):
    entry = dict(device=device, lane=lane, name=name, count=count, seconds=seconds, bytes=size, flops=flops)
    return entry | (dict(bound=bound, share=share) if bound else {})


def on_devices():
    """A run that was fine-tuned on two GPUs."""
    report = full()
    report["device"] = {
        "number": 0,
        "seconds_in_use": 8.2,
        "flops_per_second": 5.1e13,
        "memory_bytes_per_second": 2.9e12,
        "bus_bytes_per_second": 5.2e10,
        "devices": [
            {
                "number": n,
                "name": "Made-up GPU 80GB",
                "memory_budget_bytes": 1 << 30,
                "memory_peak_bytes": 640 << 20,
                "storage": "GPUDirect Storage: 6.1 GB/s beside 5.2 GB/s through pinned buffers filled by io_uring",
            }
            for n in (0, 1)
        ],
        "work": [
            work(0, "gather", "sample into pinned memory", 900, 0.4, 7 << 30),
            work(0, "read", "stored sample", 6000, 6.1, 34 << 30, bound="disk", share=0.9),
            work(0, "copy", "sample", 900, 0.2, 7 << 30, bound="transfer", share=0.7),
            work(0, "compute", "sums over samples", 900, 0.31, 4 << 30, 6.2e12, "compute", 0.39),
            work(0, "compute", "mini-batches", 6000, 3.4, 900 << 30, 9.9e13, "compute", 0.57),
            work(0, "compute", "steps", 1000, 0.6, 1400 << 30, 0, "memory", 0.86),
            work(1, "compute", "mini-batches", 6000, 3.5, 900 << 30, 9.9e13, "compute", 0.55),
            work(1, "compute", "AdaRound", 400, 0.2, 500 << 30, 1.1e12, "memory", 0.92),
        ],
    }
    return report


def calibration():
    """What `calibrate` reports: no quantized model, so no ranges and no errors."""
    report = full()
    for key in ("model_bytes_before", "model_bytes_after", "nodes_quantized", "nodes_in_float"):
        del report["summary"][key]
    for layer in report["layers"]:
        del layer["sqnr_db"], layer["cosine"]
    report["tensors"] = [{k: t[k] for k in ("name", "made_by", "observed", "histogram")} for t in report["tensors"]]
    for key in ("outputs", "outcome", "kept", "accuracy"):
        del report[key]
    del report["summary"]["latency"]
    return report


def hostile():
    """Names that try to leave their place."""
    name = "</script><img src=x onerror=alert(1)><!--<script>\u2028\"'&amp;"
    return {
        "title": name,
        "verdict": name,
        "notes": [name],
        "command": ["detent", name],
        "stages": [dict(name=name, start=0, seconds=1, bound=name, advice=name), dict(name="b", start=None, seconds=None)],
        "layers": [dict(name=name, op_type=name, seconds=1, flops=1, memory_bytes=1, sqnr_db=3, cosine=0.5)],
        "tensors": [dict(name=name, made_by=name, method=name, range=[0, 1], histogram=dict(edges=[0, 1, 2], counts=[1, 2]))],
        "outputs": [dict(name=name, sqnr_db=1, cosine=0.1)],
        "plan": [dict(what=name, unit=name, predicted=1, measured=2)],
    }


def odd():
    """Figures at the edge of what can come: zeros, nulls, one of everything, equal values."""
    return {
        "title": "odd",
        "summary": {"seconds": 0, "samples": 0},
        "machine": {"threads": 1},
        "stages": [dict(name="only", start=0, seconds=0, flops=0, memory_bytes=0)],
        "layers": [
            dict(name="one", seconds=0, flops=5, memory_bytes=3),
            dict(name="two", sqnr_db=None, cosine=None),
            dict(name="three", seconds=1, flops=2e9, memory_bytes=1e6),
        ],
        "tensors": [
            dict(name="flat", range=[0, 0], observed=[0, 0], histogram=dict(edges=[0, 0], counts=[5])),
            dict(name="empty", histogram=dict(edges=[0, 1], counts=[0])),
            dict(name="wrong", histogram=dict(edges=[0], counts=[1])),
            dict(name="bare"),
            dict(name="uneven", range=[-1, 3], histogram=dict(edges=[-4, -1, 0, 0.5, 3, 9], counts=[1, 5, 900, 40, 2])),
        ],
        "plan": [dict(what="x", unit="", predicted=0, measured=None)],
    }
