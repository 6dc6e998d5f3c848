"""What is written runs, and what is said of it was measured on it: each form is loaded and run in a process of its own before it
takes its name, and the accuracy that is told is the written file's."""

import json
import os
import subprocess
from pathlib import Path

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from failures import BAD_INPUT, DEVICE
from onnx import TensorProto, helper
from support import DETENT

FORMS: dict[str, list[object]] = {
    "default": ["--optimize-for", "size"],
    "plain": ["--preset", "plain"],
    "16 bits": ["--activation-type", "int16", "--optimize-for", "size"],
    "qoperator": ["--quant-format", "qoperator", "--optimize-for", "size"],
    "dynamic": ["--activations", "dynamic"],
    "blocks": ["--weights-only", "--block-size", "16"],
    "float16": ["--float", "16"],
    "int8 among float16": ["--float", "16", "--preset", "balanced", "--optimize-for", "size"],
    "gptq": ["--finetune", "gptq", "--optimize-for", "size"],
}
SAMPLES = 8  # so few are all judged


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(graphs.transformer(), path)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.save_samples(tmp_path_factory.mktemp("data") / "d", graphs.transformer_samples(SAMPLES))


def run(point: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DETENT_FAILPOINT": point}
    command = [str(DETENT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("end", ["guarded.open=crash", "guarded.run=crash", "guarded.run=hang"])
@pytest.mark.parametrize("form", FORMS)
def test_what_kills_the_runtime_is_not_written(tmp_path: Path, model: Path, data: Path, form: str, end: str) -> None:
    output = tmp_path / "q.onnx"
    output.write_bytes(b"")  # what stands there stays
    limit = ["--set", "sample-time-limit=1"] if end.endswith("hang") else []
    result = run(end, "quantize", model, "-o", output, "--calibration-data", data, "--no-bench", *limit, *FORMS[form])
    assert result.returncode == DEVICE, result.stderr
    said = "took longer than 1 s while it was run" if limit else "ended by a signal (Segmentation fault)"
    assert said in result.stderr
    assert len(support.without_notes(result.stderr).strip().splitlines()) == 1
    assert str(output) in result.stderr
    assert [f.name for f in tmp_path.iterdir()] == ["q.onnx"]
    assert output.read_bytes() == b""


def test_a_family_and_its_folder_are_not_written(tmp_path: Path, model: Path) -> None:
    result = run("guarded.open=crash", "quantize", model, "-o", tmp_path / "f", "--family", "fp16,q4", "--no-bench")
    assert result.returncode == DEVICE, result.stderr
    assert not list(tmp_path.iterdir())


def test_data_beside_the_model_go_with_it(tmp_path: Path, model: Path, data: Path) -> None:
    options = ["--preset", "plain", "--set", "external-data-threshold=0", "--calibration-data", data, "--no-bench"]
    assert run("guarded.run=crash", "quantize", model, "-o", tmp_path / "q.onnx", *options).returncode == DEVICE
    assert not list(tmp_path.iterdir())
    assert run("", "quantize", model, "-o", tmp_path / "q.onnx", *options).returncode == 0
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    assert run("guarded.run=crash", "quantize", model, "-o", tmp_path / "q.onnx", *options).returncode == DEVICE
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


@pytest.mark.parametrize("command", ["bench", "compare", "verify"])
def test_commands_survive_models_that_kill_the_runtime(model: Path, data: Path, command: str) -> None:
    given = [model, model] if command == "bench" else [model, model, "--calibration-data", data]
    result = run("guarded.open=crash", command, *given)
    assert result.returncode == BAD_INPUT
    assert "ended by a signal (Segmentation fault) while it was loaded" in result.stderr


def named(folder: Path, name: str) -> support.Sample:
    """A sample, or the rows of one, by the name that detent gives it: "003.npz[1:2]"."""
    file, _, rows = name.rstrip("]").partition("[")
    part = slice(*map(int, rows.split(":"))) if rows else slice(None)
    return {key: value[part] for key, value in np.load(folder / file).items()}


def measured(model: Path, output: Path, samples: list[support.Sample]) -> tuple[float, float]:
    """The worst output's SQNR over all samples, and the worst of any sample, in ONNX Runtime with its default options."""
    sessions = [ort.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in (model, output)]
    names = [value.name for value in sessions[0].get_outputs()]
    pairs = [[s.run(names, sample) for s in sessions] for sample in samples]

    def decibels(xs: list[np.ndarray], ys: list[np.ndarray]) -> float:
        x, y = (np.concatenate([v.ravel().astype(np.float64) for v in vs]) for vs in (xs, ys))
        return 10 * np.log10((x**2).sum() / ((x - y) ** 2).sum())

    floats = [i for i, v in enumerate(pairs[0][0]) if v.dtype.kind == "f"]
    whole = min(decibels([x[i] for x, _ in pairs], [y[i] for _, y in pairs]) for i in floats)
    return whole, min(decibels([x[i]], [y[i]]) for x, y in pairs for i in floats)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("network", ["transformer", "cnn", "menagerie"])
@pytest.mark.parametrize("form", [form for form in FORMS if "float16" not in form])
def test_the_accuracy_that_is_told_is_the_files(tmp_path: Path, network: str, form: str) -> None:
    made = {"transformer": graphs.transformer, "cnn": graphs.small_cnn, "menagerie": graphs.menagerie}[network]()
    of = {"transformer": graphs.transformer_samples, "cnn": graphs.cnn_samples, "menagerie": graphs.menagerie_samples}[network]
    samples = of(SAMPLES)
    onnx.save(made, tmp_path / "m.onnx")
    folder = support.save_samples(tmp_path / "d", samples)
    command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", folder, "--json", "--no-bench"]
    result = run("", *command, *FORMS[form])
    if result.returncode == BAD_INPUT:
        pytest.skip(result.stderr)  # there is nothing of this form
    told = json.loads(result.stdout).get("accuracy")
    if told is None:
        assert form == "plain"
        return
    assert told["samples"] == SAMPLES
    if "sample_names" in told:
        samples = [named(folder, name) for name in told["sample_names"]]
    whole, worst = measured(tmp_path / "m.onnx", tmp_path / "q.onnx", samples)
    assert told["sqnr_db"] == pytest.approx(whole, abs=0.1)
    if "worst_sample_db" in told:
        assert told["worst_sample_db"] == pytest.approx(worst, abs=0.1)


def test_compare_holds_a_minimum(tmp_path: Path, model: Path, data: Path) -> None:
    options = ["--calibration-data", data, "--preset", "plain", "--no-bench"]
    assert run("", "quantize", model, "-o", tmp_path / "q.onnx", *options).returncode == 0
    compare = ["compare", model, tmp_path / "q.onnx", "--calibration-data", data, "--outputs-only", "--min-sqnr"]
    assert run("", *compare, 5).returncode == 0
    missed = run("", *compare, 200)
    assert missed.returncode == BAD_INPUT and "less than the 200 of --min-sqnr" in missed.stderr


@pytest.mark.parametrize("form", ["dynamic", "blocks"])
def test_inputs_that_no_sample_can_be_of_stop_no_form_that_runs_nothing(tmp_path: Path, form: str) -> None:
    b = graphs.Builder(3)
    y = b.add("MatMul", "x", b.weight("w", 64, 64))
    made = b.model({"x": (TensorProto.FLOAT, ["n", 64]), "word": (TensorProto.STRING, ["n"])}, [y, b.add("Identity", "word")])
    onnx.save(made, tmp_path / "m.onnx")
    result = run("", "quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", *FORMS[form])
    assert result.returncode == 0, result.stderr
    assert "latency was not measured: " in result.stderr and "loaded, but not run: " in result.stderr
    feed = {"x": np.ones((2, 64), np.float32), "word": np.array(["a", "b"])}
    x, y = (ort.InferenceSession(tmp_path / f"{name}.onnx").run(None, feed) for name in "mq")
    assert support.sqnr([[x[0]]], [[y[0]]]) > 15 and x[1].tolist() == y[1].tolist()


@pytest.mark.parametrize("form", ["--weights-only", "--activations=dynamic"])
def test_a_float_model_that_the_runtime_refuses_is_told_as_such(tmp_path: Path, form: str) -> None:
    """Forms that load nothing before the proof: the fault is the model's, code 3, not the quantized one's."""
    b = graphs.Builder(5)
    model = b.model({"x": (graphs.FLOAT, [4, 64])}, [b.add("Relu", b.add("MatMul", "x", b.weight("w", 64, 64)))])
    model.graph.node[-1].op_type, model.graph.node[-1].domain = "Unheard", "of.nobody"
    model.opset_import.append(onnx.helper.make_opsetid("of.nobody", 1))
    onnx.save(model, tmp_path / "m.onnx")
    result = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", form)
    assert result.returncode == BAD_INPUT and "m.onnx" in result.stderr and "quantized" not in result.stderr, result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx"]


def mlp_that_ends_in(integers: str) -> onnx.ModelProto:
    """All of whose results are integers: classes, or bytes as of a picture."""
    rng = np.random.default_rng(4)
    b = graphs.Builder(4)
    x = b.add("Relu", b.add("MatMul", "x", b.constant("w", rng.normal(0, 0.2, (32, 64)), np.float32), name="first"))
    x = b.add("MatMul", x, b.constant("v", rng.normal(0, 0.2, (64, 24)), np.float32), name="second")
    if integers == "classes":
        return b.model({"x": (TensorProto.FLOAT, [20, 32])}, [b.add("ArgMax", x, axis=1, keepdims=0)])
    x = b.add("Add", b.add("Mul", x, b.constant("wide", 60, np.float32)), b.constant("middle", 128, np.float32))
    x = b.add("Clip", x, b.constant("low", 0, np.float32), b.constant("high", 255, np.float32))
    return b.model({"x": (TensorProto.FLOAT, [20, 32])}, [b.add("Cast", b.add("Round", x), to=TensorProto.UINT8)])


@pytest.mark.parametrize("integers", ["classes", "bytes"])
@pytest.mark.parametrize("form", ["default", "dynamic", "blocks", "float16"])
def test_results_of_integers_alone_are_judged_as_numbers(tmp_path: Path, form: str, integers: str) -> None:
    """They are not those of the float model because there are no floats to compare."""
    onnx.save(mlp_that_ends_in(integers), tmp_path / "m.onnx")
    rng = np.random.default_rng(7)
    samples = [{"x": rng.normal(0, 1, (20, 32)).astype(np.float32)} for _ in range(SAMPLES)]
    folder = support.save_samples(tmp_path / "d", samples)
    command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", folder, "--json", "--no-bench"]
    result = run("", *command, *FORMS[form])
    told = json.loads(result.stdout)["accuracy"]
    sessions = [support.load(tmp_path / name) for name in ("m.onnx", "q.onnx")]
    whole = support.sqnr(*(support.outputs(session, samples) for session in sessions))
    assert whole < 300 or form == "float16"  # some results differ
    assert told["sqnr_db"] == (pytest.approx(whole, abs=0.1) if whole < 300 else None)
    compared = run(
        "", "compare", tmp_path / "m.onnx", tmp_path / "q.onnx", "--calibration-data", folder, "--json", "--no-round-floats"
    )
    assert json.loads(compared.stdout)["outputs"][0]["sqnr_db"] == told["sqnr_db"]
    if form == "default":
        assert all(value["error"] > 0 for value in told["sensitivities"])


def test_what_holds_no_numbers_is_not_said_to_be_the_same(tmp_path: Path) -> None:
    model = mlp_that_ends_in("classes")
    names = helper.make_node(
        "LabelEncoder", [model.graph.output[0].name], ["name"], domain="ai.onnx.ml", keys_int64s=range(24),
        values_strings=[f"class {i}" for i in range(24)],
    )  # fmt: skip
    model.graph.node.append(names)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("name", TensorProto.STRING, [20]))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    onnx.save(model, tmp_path / "m.onnx")
    samples = [{"x": np.random.default_rng(i).normal(0, 1, (20, 32)).astype(np.float32)} for i in range(SAMPLES)]
    folder = support.save_samples(tmp_path / "d", samples)
    command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", folder, "--json", "--no-bench"]
    told = json.loads(run("", *command, *FORMS["default"]).stdout)
    assert told["accuracy"]["samples"] == 0
    assert "the compared outputs are those" not in told["outcome"]["headline"]
    assert [note for note in told["notes"] if note.startswith("not compared") and note.endswith("name")]


def branches(type_: int) -> onnx.ModelProto:
    """Two products, in the bodies of an If. ONNX Runtime 1.31 and 1.32 lose such weights as DequantizeLinear in float16."""
    dtype = helper.tensor_dtype_to_np_dtype(type_)
    rng = np.random.default_rng(8)
    weights = [onnx.numpy_helper.from_array(rng.normal(0, 0.3, (64, 64)).astype(dtype), name) for name in ("v", "w")]
    bodies = [
        helper.make_graph(
            [helper.make_node("MatMul", ["x", name], [f"of_{name}"])],
            name,
            [],
            [helper.make_tensor_value_info(f"of_{name}", type_, None)],
        )
        for name in ("v", "w")
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["is_large"]),
        helper.make_node("If", ["is_large"], ["y"], then_branch=bodies[0], else_branch=bodies[1]),
    ]
    io = [[helper.make_tensor_value_info(name, type_, ["n", 64])] for name in ("x", "y")]
    zero = onnx.numpy_helper.from_array(np.zeros((), dtype), "zero")
    graph = helper.make_graph(nodes, "g", *io, [*weights, zero])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.parametrize("type_", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_form_that_the_runtime_loses_is_written_in_another(tmp_path: Path, type_: int) -> None:
    onnx.save(branches(type_), tmp_path / "m.onnx")
    options = ["--weights-only", "--set", "weights-form=qdq", "--float", "16"]
    result = run("", "quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", *options, "--no-bench")
    assert result.returncode == 0, result.stderr
    assert "weights are stored for MatMulNBits instead" in result.stderr
    x = np.random.default_rng(9).normal(0, 1, (4, 64)).astype(helper.tensor_dtype_to_np_dtype(type_))
    for sign in (1, -1):
        feed = {"x": np.abs(x) * x.dtype.type(sign)}
        expected, found = (support.load(tmp_path / f"{name}.onnx").run(None, feed) for name in "mq")
        assert support.sqnr([expected], [found]) > 10


def test_products_that_int8_loses_compute_in_float(tmp_path: Path) -> None:
    """A channel that is large, and that no weight reads, leaves the rest of its block no bits in int8."""
    rng = np.random.default_rng(11)
    b = graphs.Builder(11)
    weights = rng.normal(0, 0.3, (32, 64))
    weights[0] = 0
    x = b.add("Mul", "x", b.constant("k", [1e5] + [1] * 31, np.float32))
    onnx.save(b.model({"x": (TensorProto.FLOAT, ["n", 32])}, [b.add("MatMul", x, b.constant("w", weights))]), tmp_path / "m.onnx")
    result = run("", "quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--format", "q4", "--no-bench")
    assert result.returncode == 0, result.stderr
    assert "with weights in blocks multiplied in int8" in result.stderr and "--set accuracy-level=0" in result.stderr
    feed = {"x": rng.normal(0, 1, (4, 32)).astype(np.float32)}
    expected, found = (support.load(tmp_path / f"{name}.onnx").run(None, feed) for name in "mq")
    assert support.sqnr([expected], [found]) > 10


def wide_values() -> onnx.ModelProto:
    """Numbers beyond those of float16 between two products, whichever inputs come."""
    rng = np.random.default_rng(10)
    b = graphs.Builder(10)
    x = b.add(
        "MatMul",
        b.add("MatMul", "x", b.weight("u", 64, 64)),
        b.constant("v", rng.normal(0, 5e4, (64, 64)), np.float32),
        name="wide",
    )
    x = b.add("MatMul", b.add("Mul", x, b.constant("k", 1e-4, np.float32), name="narrow"), b.weight("w", 64, 16))
    return b.model({"x": (TensorProto.FLOAT, ["n", 64])}, [x])


@pytest.mark.parametrize("form", ["fp16", "q4f16"])
def test_without_samples_made_up_inputs_tell_what_16_bits_do_not_hold(tmp_path: Path, form: str) -> None:
    """ONNX Runtime's CPU computes float16 in float32: here values are rounded as devices do."""
    onnx.save(wide_values(), tmp_path / "m.onnx")
    result = run("", "quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--format", form, "--no-bench")
    assert result.returncode == 0, result.stderr
    assert "they stay in float32: narrow, wide" in result.stderr
    rng = np.random.default_rng(11)
    samples = support.save_samples(tmp_path / "d", [{"x": rng.normal(0, 1, (4, 64)).astype(np.float32)} for _ in range(2)])
    compared = run("", "compare", tmp_path / "m.onnx", tmp_path / "q.onnx", "--calibration-data", samples, "--json")
    assert json.loads(compared.stdout)["outputs"][0]["sqnr_db"] > 12


def test_what_no_node_in_float32_mends_ends_with_its_name(tmp_path: Path) -> None:
    """A result that float16 cannot hold, where results are to have 16 bits."""
    model = wide_values()
    del model.graph.node[-2:]
    model.graph.output[0].name = model.graph.node[-1].output[0]
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 64
    onnx.save(model, tmp_path / "m.onnx")
    options = ["--format", "fp16", "--set", "no-keep-io-types", "--no-bench"]
    result = run("", "quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", *options)
    assert result.returncode == BAD_INPUT and "node 'wide'" in result.stderr, result.stderr
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.full
def test_many_pairs_are_loaded_without_optimizations(tmp_path: Path) -> None:
    """The runtime's time to optimize them grows with their square."""
    b = graphs.Builder(4)
    x = "x"
    for i in range(1300):
        x = b.add("MatMul", x, b.weight(f"w{i}", 4, 4, scale=0.5))
    onnx.save(b.model({"x": (TensorProto.FLOAT, [4, 4])}, [x]), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "d", [{"x": np.ones((4, 4), np.float32)}])
    result = run("", "quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", data, "--preset", "plain")
    assert result.returncode == 0, result.stderr
    assert "run without ONNX Runtime's optimizations" in result.stderr
    assert sum(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in onnx.load(tmp_path / "q.onnx").graph.node) > 3800
