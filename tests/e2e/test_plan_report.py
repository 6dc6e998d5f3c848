"""What a run says of itself: the plan before it, the report and the trace after it."""

import json
import re
import subprocess
import sys

import graphs
import numpy as np
import onnx
import pytest
import support
from support import Path

Place = tuple[Path, Path]


@pytest.fixture(scope="module", params=["cnn", "ppocr_cls"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A model and samples."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "cnn":
        onnx.save(graphs.small_cnn(), folder / "model.onnx")
        return folder / "model.onnx", support.save_samples(folder / "data", graphs.cnn_samples(4))
    rng = np.random.default_rng(0)
    samples = [{"x": rng.standard_normal((1, 3, 48, 192), dtype=np.float32)} for _ in range(4)]
    return support.MODELS / "ppocr_cls.onnx", support.save_samples(folder / "data", samples)


def plan(model: Path, *options: object) -> dict:
    result = support.detent("plan", model, "--json", *options)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def report_data(page: Path) -> dict:
    return json.loads(re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)[1])


def agrees(predicted: float, measured: float, share: float) -> bool:
    """Processes that the runtime is tried in stand beside the run for a moment, which sampling meets or does not."""
    beside = 60 << 20
    return (1 - share) * predicted < measured < (1 + share) * predicted + beside


@pytest.mark.parametrize("rows", [["--batch-size", 1], ["--batch-size", 3], ["--batch-size", 1, "--samples", 5]], ids=str)
def test_samples_of_one_file_count_each(place: Place, tmp_path: Path, rows: list[object]) -> None:
    model, data = place
    whole = np.concatenate([sample["x"] for sample in support.load_samples(data)] * 3)
    np.save(tmp_path / "x.npy", whole)
    given = ["--calibration-data", tmp_path / "x.npy", *rows]
    planned = plan(model, *given)
    done = support.quantize(model, tmp_path / "q.onnx", tmp_path / "x.npy", *rows)
    assert planned["samples"] == done["samples"] > 1


@pytest.mark.parametrize("preset", ["plain", "balanced"])
def test_a_table_that_a_product_reads_as_well_counts_once(preset: str, tmp_path: Path) -> None:
    """Whether the product is left in float for speed or not."""
    b = graphs.Builder(2)
    table = b.weight("table", 256, 64, scale=1)
    x = b.add("MatMul", b.add("Gather", table, "ids"), b.weight("w", 64, 64))
    logits = b.add("Einsum", x, table, equation="bte,ve->btv")
    onnx.save(b.model({"ids": (onnx.TensorProto.INT64, ["B", "T"])}, [logits]), tmp_path / "model.onnx")
    samples = [{"ids": np.random.default_rng(i).integers(0, 256, (1, 9))} for i in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    options = ["--preset", preset, *(["--optimize-for", "latency"] if preset == "balanced" else [])]
    given = [*options, "--format", "int8"]
    planned = plan(tmp_path / "model.onnx", "--calibration-data", data, *given)
    done = support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, *given)
    assert abs(planned["output_bytes"] - done["model_bytes_after"]) < (4 << 10) + 64 * 64 * 3
    chosen = support.quantize(tmp_path / "model.onnx", tmp_path / "chosen.onnx", data, *options)
    assert chosen["model_bytes_after"] < chosen["model_bytes_before"], "where all stays in float for speed as well"


def test_the_plan_says_what_the_run_does(place: Place, tmp_path: Path) -> None:
    model, data = place
    planned = plan(model, "--calibration-data", data, "--method", "mse")
    done = support.quantize(model, tmp_path / "q.onnx", data, "--method", "mse")
    assert planned["samples"] == done["samples"]
    for count in ("nodes_quantized", "nodes_in_float"):
        assert planned[count] == done[count]
    assert planned["macs"] > 0
    calibration = next(stage["bytes"] for stage in planned["stages"] if stage["what"] == "calibration")
    assert sum(part["bytes"] for part in planned["memory"]) == calibration <= planned["peak_memory_bytes"]
    measured = next(s["peak_memory_bytes"] for s in done["stages"] if s["name"] == "Calibration")
    assert agrees(calibration, measured, 0.15)
    assert 0.8 < planned["output_bytes"] / done["model_bytes_after"] < 1.25


FORMATS = ["int8-dynamic", "q8", "q4", "q4f16", "q2", "fp16", "bf16", "mxfp4", "bfp16"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("format_", FORMATS)
def test_the_plan_of_every_format_says_what_the_run_does(format_: str, place: Place, tmp_path: Path) -> None:
    model, data = place
    # Samples tell more of fp16 than a plan knows, which says so.
    given = ["--format", format_, *([] if format_ in ("int8-dynamic", "fp16") else ["--calibration-data", str(data)])]

    def run(*command: object) -> subprocess.CompletedProcess:
        words = [str(word) for word in (support.DETENT, *command, *given, "--json")]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    results = run("plan", model), run("quantize", model, "-o", tmp_path / "q.onnx", "--no-bench")
    assert results[0].returncode == results[1].returncode
    if results[0].returncode != 0:  # of a small model, blocks of 8 bits
        assert "would not make it much smaller" in results[0].stderr and results[0].stderr == results[1].stderr
        return
    planned, done = (json.loads(result.stdout) for result in results)
    for count in ("nodes_quantized", "nodes_in_float"):
        assert planned[count] == done[count]
    if format_ in ("fp16", "bf16"):
        for count in ("nodes", "nodes_kept"):
            assert planned["floats"][count] == done["floats"][count]
    assert abs(planned["output_bytes"] - done["model_bytes_after"]) < 0.1 * done["model_bytes_after"] + (64 << 10)  # names
    assert any("not for this format" in note for note in planned["notes"])


@pytest.mark.full
def test_the_plan_of_several_formats_in_one_model_says_what_the_run_does(place: Place, tmp_path: Path) -> None:
    model, data = place
    mixed = ["--calibration-data", data, "--node-formats", "^.*=int8", "--node-formats", "^.*=int8-dynamic"]
    planned = plan(model, *mixed)
    done = json.loads(support.detent("quantize", model, "-o", tmp_path / "q.onnx", *mixed, "--json").stdout)
    for count in ("nodes_quantized", "nodes_in_float"):
        assert planned[count] == done[count] > 0 or count == "nodes_in_float"
    assert abs(planned["output_bytes"] - done["model_bytes_after"]) < 0.2 * done["model_bytes_after"] + (64 << 10)
    assert planned["peak_memory_bytes"] > 0, "of calibration"


def test_what_the_run_refuses_the_plan_refuses_too(tmp_path: Path) -> None:
    onnx.save(graphs.small_cnn(), tmp_path / "model.onnx")
    words = ["--weights-only", "--exclude-op-types", "MatMul,Gemm,Gather"]
    told = [support.detent(*c, tmp_path / "model.onnx", *words) for c in (["plan"], ["quantize", "-o", tmp_path / "q.onnx"])]
    assert told[0].returncode == told[1].returncode != 0 and told[0].stderr == told[1].stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--max-size", "1MiB"], "--max-size without --weights-only searches formats.*; plan one format"),
        (["--max-latency", "5ms"], "--max-latency searches formats.*; plan one format"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_has_no_plan_says_why(tmp_path: Path, options: list[str], says: str) -> None:
    onnx.save(graphs.small_cnn(), tmp_path / "model.onnx")
    told = support.detent("plan", tmp_path / "model.onnx", *options)
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (2, "", 1)
    assert re.search(says, told.stderr), told.stderr


def test_the_plan_of_a_family_has_a_plan_for_each(place: Place, tmp_path: Path) -> None:
    model, data = place
    names = ["fp32", "q8", "fp16"]
    line = [model, "--calibration-data", data, "--family", ",".join(names)]
    planned = plan(*line)
    assert [member["name"] for member in planned["family"]] == names
    done = json.loads(support.detent("quantize", *line, "-o", tmp_path / "out", "--json").stdout)["family"]
    for member, made in zip(planned["family"], done, strict=True):
        assert abs(member["output_bytes"] - made["model_bytes_after"]) < 0.1 * made["model_bytes_after"] + (64 << 10)
        assert member["nodes_quantized"] == made.get("nodes_quantized", 0)
    assert planned["output_bytes"] == sum(member["output_bytes"] for member in planned["family"])
    text = support.detent("plan", *line).stdout.splitlines()
    assert [line.split()[0] for line in text[-4:]] == [*names, "3"]


def test_the_plan_refuses_over_budget_what_was_asked_for(trained: list[object]) -> None:
    asked = [*BALANCED, "--finetune", "adaround", "--memory-budget", "60MiB"]
    told = [support.detent(command, *trained, *asked) for command in ("plan", "quantize")]
    assert told[0].returncode == told[1].returncode == 4
    assert all("fine-tuning needs" in each.stderr for each in told), [each.stderr for each in told]
    free = plan(*trained, *BALANCED)
    assert not any("left out" in stage["what"] for stage in free["stages"])  # without a budget the run leaves nothing out


def test_what_measuring_takes(place: Place) -> None:
    model, data = place
    balanced = ["--preset", "balanced", "--calibration-data", data]
    planned = plan(model, *balanced)
    assert planned["measuring_seconds"] > planned["calibration_seconds"] > 0
    assert 5 < planned["measuring_inferences"] < 100
    assert planned["finetune"]["only_if_needed"]
    asked = plan(model, *balanced, "--set", "sensitivity=off", "--finetune", "gptq")
    assert asked["measuring_seconds"] == 0
    assert asked["finetune"] == {**planned["finetune"], "only_if_needed": False, "seconds": asked["finetune"]["seconds"]}
    for options in (["--preset", "balanced"], [*balanced, "--finetune", "nearest"], ["--calibration-data", data]):
        assert "finetune" not in plan(model, *options)


def test_macs_by_hand(tmp_path: Path) -> None:
    """Convolutions: outputs times weights of one channel; the last layer: rows times columns times terms."""
    onnx.save(graphs.small_cnn(), tmp_path / "model.onnx")
    model = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "model.onnx"))
    shape = "x".join(str(n) for n in graphs.cnn_samples(1)[0][model.graph.input[0].name].shape)
    name = model.graph.input[0].name
    found = json.loads(support.detent("inspect", tmp_path / "model.onnx", "--shape", f"{name}:{shape}", "--json").stdout)
    weights = {t.name: tuple(t.dims) for t in model.graph.initializer}
    layers = {layer["name"]: layer for layer in found["layers"]}
    checked = 0
    for node in model.graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul"):
            continue
        layer = layers[node.name]
        outputs = np.prod([int(n) for n in layer["output_shape"].strip("[]").split(",")])
        dims = weights[node.input[1]]
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        terms = np.prod(dims[1:]) if node.op_type == "Conv" else dims[1 if transposed else 0]
        assert layer["macs"] == outputs * terms, node.name
        checked += 1
    assert checked >= 3


def test_the_plan_runs_nothing_and_needs_no_data(place: Place) -> None:
    assert plan(place[0])["tensors_observed"] > 0


def test_report_and_trace(place: Place, tmp_path: Path) -> None:
    model, data = place
    support.quantize(model, tmp_path / "plain.onnx", data)
    options = ["--report", tmp_path / "r.html", "--set", f"trace={tmp_path / 't.json'}"]
    done = support.quantize(model, tmp_path / "q.onnx", data, *options)
    assert support.sha256(tmp_path / "q.onnx") == support.sha256(tmp_path / "plain.onnx")

    data_shown = report_data(tmp_path / "r.html")
    assert data_shown["summary"]["samples"] == done["samples"]
    assert {s["name"] for s in data_shown["stages"]} >= {"Pre-process", "Calibration", "Post-process", "Comparison"}
    assert data_shown["verdict"]
    assert data_shown["machine"]["flops_per_second"] > 0
    timed = [layer for layer in data_shown["layers"] if layer["seconds"] > 0]
    assert sum(layer["macs"] for layer in timed) > 0.5 * sum(layer["macs"] for layer in data_shown["layers"])
    for tensor in data_shown["tensors"]:
        low, high = tensor["observed"]
        assert low <= tensor["range"][0] <= tensor["range"][1] <= high
        assert tensor["method"] in ("minmax", "operator")
    assert data_shown["command"][1:3] == ["quantize", str(model)]
    peak = data_shown["plan"][0]
    assert agrees(peak["predicted"], peak["measured"], 0.25)
    assert data_shown["outputs"][0]["sqnr_db"] > 5

    events = json.loads((tmp_path / "t.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    assert {"Calibration"} <= {e["name"] for e in events if e["ph"] == "X"}


def test_a_report_hides_no_peak(place: Place, tmp_path: Path) -> None:
    """Neither of the run nor of what is measured of the machine for the report."""
    model, data = place
    line = ["quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", data, "--preset", "plain", "--no-bench"]
    peak, told = peak_of(*line, "--report", tmp_path / "r.html", "--json")
    shown = report_data(tmp_path / "r.html")["summary"]["peak_memory_bytes"]
    assert 0.95 * peak <= shown <= json.loads(told)["peak_memory_bytes"]
    without, _ = peak_of(*line)
    assert peak < without + (64 << 20)


def test_each_tensor_tells_its_method(place: Place, tmp_path: Path) -> None:
    model, data = place
    plain = support.quantize(model, tmp_path / "plain.onnx", data)["activations"]
    scales = [shown["scale"] for shown in plain.values()]
    named = [n for n, shown in plain.items() if shown["method"] == "minmax" and scales.count(shown["scale"]) == 1][:2]
    options = ["--set", f"tensor-method={named[0]}=mse", "--set", f"tensor-range={named[1]}=-1,1", "--report", tmp_path / "r.html"]
    found = support.quantize(model, tmp_path / "q.onnx", data, "--method", "percentile", *options)["activations"]
    assert (found[named[0]]["method"], found[named[1]]["method"]) == ("mse", "given")
    assert {shown["method"] for shown in found.values()} >= {"percentile", "mse", "given"}
    shown = {tensor["name"]: tensor["method"] for tensor in report_data(tmp_path / "r.html")["tensors"]}
    assert shown.items() <= {name: entry["method"] for name, entry in found.items()}.items()


def test_report_of_calibration_alone(place: Place, tmp_path: Path) -> None:
    model, data = place
    plain = support.calibrate(model, tmp_path / "plain.stats", data)
    options = ["--report", tmp_path / "r.html", "--set", f"trace={tmp_path / 't.json'}"]
    calibrated = support.calibrate(model, tmp_path / "c.stats", data, *options)
    assert support.sha256(plain) == support.sha256(calibrated)

    shown = report_data(tmp_path / "r.html")
    assert shown["command"][1] == "calibrate"
    assert shown["summary"]["samples"] == 4
    assert "nodes_quantized" not in shown["summary"]
    assert {s["name"] for s in shown["stages"]} >= {"Pre-process", "Calibration", "Post-process"}
    assert next(s for s in shown["stages"] if s["name"] == "Calibration")["flops"] > 0
    assert sum(layer["seconds"] > 0 for layer in shown["layers"]) > 3
    assert all("histogram" in t and "range" not in t for t in shown["tensors"] if t["observed"][0] < t["observed"][1])
    assert shown["plan"][0]["measured"] > 0
    events = json.loads((tmp_path / "t.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    assert {"Calibration"} <= {e["name"] for e in events if e["ph"] == "X"}


def test_merging_has_nothing_to_report(tmp_path: Path) -> None:
    result = support.detent("calibrate", "--merge", "a.stats", "-o", tmp_path / "b.stats", "--report", tmp_path / "r.html")
    assert result.returncode == 2
    assert "--report" in result.stderr


@pytest.mark.parametrize("command", ["quantize", "calibrate"])
@pytest.mark.parametrize("option", ["--report", "--set=trace"])
def test_a_mistyped_path_costs_nothing(place: Place, option: str, command: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious.onnx"
    precious.write_bytes(b"a model")
    result = support.detent(command, place[0], "-o", tmp_path / "q.onnx", "--calibration-data", place[1], f"{option}={precious}")
    assert result.returncode == 2
    assert "precious.onnx" in result.stderr
    assert precious.read_bytes() == b"a model"
    assert not (tmp_path / "q.onnx").exists()


def test_a_convolution_of_unknown_rank_is_listed(tmp_path: Path) -> None:
    """Behind an If, whose branches may give anything, no shape is known."""
    b = graphs.Builder(11)
    branch = lambda name: onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], [name])], name, [], [onnx.helper.make_tensor_value_info(name, graphs.FLOAT, None)]
    )
    some = b.add("If", "which", then_branch=branch("a"), else_branch=branch("b"))
    out = b.add("Conv", some, b.weight("w", 4, 3, 1, 1), name="behind")
    model = b.model({"x": (graphs.FLOAT, None), "which": (onnx.TensorProto.BOOL, [])}, [out])
    onnx.save(model, tmp_path / "model.onnx")
    result = support.detent("inspect", tmp_path / "model.onnx")
    assert (result.returncode, "behind" in result.stdout) == (0, True), result.stderr


def peak_of(*command: object) -> tuple[int, str]:
    """The largest process of a command as the kernel counts it, in bytes, and what it printed. It must succeed."""
    words = [sys.executable, "-c", PEAK, str(support.DETENT), *map(str, command)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr
    peak, _, told = result.stdout.partition("\n")
    return int(peak) * 1024, told


PEAK = """
import resource, subprocess, sys
ran = subprocess.run(sys.argv[1:], capture_output=True, text=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
print(ran.stdout)
sys.stderr.write(ran.stderr)
sys.exit(ran.returncode)
"""


@pytest.fixture(scope="module", params=["ppocr_cls", "ppocr_det"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """A trained model as the command line takes it, with pictures, and where times of kernels are kept."""
    folder = tmp_path_factory.mktemp(request.param)
    size = {"ppocr_cls": 64, "ppocr_det": 320}[request.param]
    pictures = ["--images", support.MODELS / "photos", "--image-preset", "imagenet", "--set", f"image-size={size}"]
    kept = ["--set", f"kernel-table={folder / 'kernels.json'}"]
    return [support.MODELS / f"{request.param}.onnx", "-o", folder / "q.onnx", *pictures, *kept]


BALANCED = ["--preset", "balanced"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [BALANCED, ["--preset", "plain", "--no-bench"], [*BALANCED, "--optimize-for", "size"]])
def test_the_plan_of_the_same_line(trained: list[object], options: list[object]) -> None:
    """Nodes are those that the run begins with, of which measuring takes some back; the peak is the run's."""
    planned = json.loads(peak_of("plan", *trained, *options, "--json")[1])
    peak, told = peak_of("quantize", *trained, *options, "--json")
    done = json.loads(told)
    if planned["nodes_may_change"]:
        possible = max(planned["nodes_with_gates"], planned["nodes_quantized"] + planned["nodes_in_float"])
        assert 0.7 * planned["nodes_quantized"] <= done["nodes_quantized"] <= possible
    else:
        assert done["nodes_quantized"] == planned["nodes_quantized"]
    rare = (
        ["layers computed differently"] + ["tuning weights"] * planned["finetune"]["only_if_needed"]
        if "finetune" in planned
        else []
    )
    always = [stage["bytes"] for stage in planned["stages"] if stage["what"] not in rare]
    assert planned["peak_memory_bytes"] == max(always)
    ran = {stage["name"] for stage in done["stages"]}
    only_if = {
        "tuning weights": "Fast Finetune" in ran,
        "layers computed differently": any(note.startswith("as deployed the worst output has") for note in done["notes"]),
    }
    happened = [stage for stage in planned["stages"] if only_if.get(stage["what"], True)]
    assert 0.75 < max(stage["bytes"] for stage in happened) / peak < 1.25


@pytest.mark.full
def test_a_budget_of_the_default_preset_is_kept(trained: list[object], tmp_path: Path) -> None:
    budget = [*BALANCED, "--memory-budget", "120MiB"]
    planned = json.loads(peak_of("plan", *trained, *budget, "--json")[1])
    peak, told = peak_of("quantize", *trained, *budget, "--report", tmp_path / "r.html", "--json")
    assert peak < 1.1 * (120 << 20)  # the kernel's count, in which freed memory may linger
    assert planned["peak_memory_bytes"] <= 120 << 20
    left_out = [stage for stage in planned["stages"] if stage["what"].endswith(": left out")]
    notes = json.loads(told)["notes"]
    for stage in left_out:
        what = {"tuning weights: left out": "weights are not tuned", "latency: left out": "latency is not measured"}[stage["what"]]
        assert any(what in note for note in notes), notes
