"""same_bytes.py DETENT EMULATED MODELS FOLDER: runs of two builds of detent, for this machine and for another one in an
emulator, and whether they write the same bytes. Where the runtime's arithmetic takes no part they have to. What comes from
samples has the same tensors up to the last bits of floats; what is solved from them may round otherwise, and has to be as
near to the float model. Needs onnx, onnxruntime and numpy."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

RELATIVE = 1e-4  # what scales and other floats may differ by
SHARE = 0.01  # of a model's integers, which may then fall to the other side
DECIBEL = 6.0  # how much farther from the float model the other machine's solution may be
INPUTS = {
    "ppocr_cls": {"x": ((1, 3, 48, 192), np.float32)},
    "silero_vad": {"input": ((1, 576), np.float32), "state": ((2, 1, 128), np.float32)},
    "magika": {"bytes": ((1, 2048), np.int32)},
    "minilm": {name: ((1, 32), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")},
}
EXACT = [
    ("ppocr_cls", "fp16"),
    ("ppocr_cls", "bf16"),
    ("ppocr_cls", "int8-dynamic"),
    ("silero_vad", "fp16"),
    ("magika", "q4"),
    ("magika", "q8"),
    ("magika", "q2"),
    ("magika", "mxfp4"),
    ("magika", "nvfp4"),
    ("magika", "bfp16"),
    ("minilm", "q4"),
    ("minilm", "mxfp8"),
]
CLOSE = [
    ("ppocr_cls", "int8 --preset plain"),
    ("ppocr_cls", "int8 --preset plain --method entropy"),
    ("ppocr_cls", "int8 --preset plain --target ort-cpu:arm"),
    ("silero_vad", "int8 --preset plain"),
    ("magika", "int8 --preset plain"),
]
SOLVED = [
    ("ppocr_cls", "int8 --preset plain --finetune gptq"),
    ("ppocr_cls", "int8 --preset plain --finetune adaround"),
    ("magika", "q4"),
]


def samples_of(model: str, folder: pathlib.Path) -> pathlib.Path:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(4):
        sample = {}
        for name, (shape, kind) in INPUTS[model].items():
            if kind == np.float32:
                sample[name] = rng.standard_normal(shape).astype(kind)
            else:
                sample[name] = (
                    np.ones(shape, kind) if "mask" in name else rng.integers(0, 2 if "type" in name else 256, shape, kind)
                )
        np.savez(folder / f"{number}.npz", **sample)
    return folder


def fault_of(program: str, model: pathlib.Path, out: pathlib.Path, options: list[str]) -> str:
    done = subprocess.run([program, "quantize", model, "-o", out, *options, "--no-bench"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"{program}: exit code {done.returncode}: {done.stderr}"


def outputs(model: pathlib.Path, samples: pathlib.Path) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    found = []
    for file in sorted(samples.iterdir()):
        with np.load(file) as sample:
            found += [value.ravel().astype(np.float64) for value in session.run(None, dict(sample))]
    return found


def sqnr(reference: list[np.ndarray], values: list[np.ndarray]) -> float:
    signal = sum(float(np.sum(a * a)) for a in reference)
    noise = sum(float(np.sum((a - b) ** 2)) for a, b in zip(reference, values, strict=True))
    return 200.0 if noise == 0 else float(10 * np.log10(signal / noise))


def differences(written: list[pathlib.Path]) -> dict[str, object]:
    """The largest relative difference of a float, and the share of integers that differ."""
    first, second = ({t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer} for path in written)
    if {name: t.shape for name, t in first.items()} != {name: t.shape for name, t in second.items()}:
        return {"tensors": "other ones"}
    relative, differ, integers = 0.0, 0, 0
    for name, a in first.items():
        b = second[name]
        if a.dtype.kind == "f":
            a, b = np.nan_to_num(a), np.nan_to_num(b)
            size = float(np.max(np.abs(a), initial=0)) or 1.0
            relative = max(relative, float(np.max(np.abs(a - b), initial=0)) / size)
        else:
            differ += int(np.count_nonzero(a != b))
            integers += a.size
    return {"floats": float(f"{relative:.2g}"), "integers": float(f"{differ / max(integers, 1):.2g}")}


def verdict_of(row: dict[str, object], written: list[pathlib.Path], model: pathlib.Path, samples: pathlib.Path) -> bool:
    """Whether two results are as they should be; what was found goes to the row."""
    row["same"] = written[0].read_bytes() == written[1].read_bytes()
    if row["same"] or row["kind"] == "exact":
        return bool(row["same"])
    row.update(differences(written))
    if row["kind"] == "close":
        return "tensors" not in row and row["floats"] <= RELATIVE and row["integers"] <= SHARE
    reference = outputs(model, samples)
    here, there = (round(sqnr(reference, outputs(path, samples)), 2) for path in written)
    row["sqnr"] = [here, there]
    return there >= here - DECIBEL


def main() -> None:
    ours, emulated, models, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
    folder.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[5] if len(sys.argv) > 5 else ""
    failures = 0
    rows = [(*row, kind) for kind, part in (("exact", EXACT), ("close", CLOSE), ("solved", SOLVED)) for row in part]
    for number, (name, options, kind) in enumerate(rows):
        model = models / f"{name}.onnx"
        row: dict[str, object] = {"model": name, "format": options, "kind": kind}
        if wanted and wanted != kind:
            continue
        if not model.exists():
            print(json.dumps({**row, "skipped": f"no {model}"}), flush=True)
            continue
        words = ["--format", *options.split()]
        samples = samples_of(name, folder / "samples" / name)
        if kind != "exact":
            words += ["--calibration-data", str(samples)]
        written = [folder / f"{number}.{build}.onnx" for build in ("ours", "emulated")]
        faults = [fault_of(program, model, out, words) for program, out in zip((ours, emulated), written, strict=True)]
        if any(faults):
            row["faults"] = faults
        right = not any(faults) and verdict_of(row, written, model, samples)
        failures += not right
        print(json.dumps({**row, "right": right}), flush=True)
    if failures:
        sys.exit(f"{failures} of {len(rows)} are not as they should be")


if __name__ == "__main__":
    main()
