"""Dynamic activations: the numbers of ONNX Runtime's quantize_dynamic, and better ones where it is at fault."""

import json

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from failures import BAD_INPUT, USAGE, check
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from support import Path

RNG = np.random.default_rng(3)


def dynamic(model: Path, output: Path, *options: object) -> dict:
    """`detent quantize --activations dynamic`, which must succeed without a word on stderr."""
    result = support.detent("quantize", model, "-o", output, "--activations", "dynamic", "--json", "--no-bench", *options)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def save(path: Path, nodes: list, tensors: dict[str, np.ndarray], inputs: dict[str, tuple], outputs: list[str]) -> Path:
    values = [
        helper.make_tensor_value_info(k, TensorProto.INT64 if k == "ids" else TensorProto.FLOAT, s) for k, s in inputs.items()
    ]
    made = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
    initializers = [numpy_helper.from_array(v, k) for k, v in tensors.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", values, made, initializers), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    onnx.save(model, path)
    return path


def products(path: Path) -> Path:
    """Three products of one value, a Gemm in both directions, a product of a product."""
    nodes = [
        helper.make_node("MatMul", ["x", "q"], ["a"], "query"),
        helper.make_node("MatMul", ["x", "k"], ["b"], "key"),
        helper.make_node("Gemm", ["x", "t", "bias"], ["c"], "transposed", transB=1),
        helper.make_node("Gemm", ["x", "g", "row"], ["d"], "straight"),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MatMul", ["r", "o"], ["e"], "after"),
    ]
    tensors = {"q": normal(48, 24), "k": normal(48, 24), "t": normal(24, 48), "g": normal(48, 24), "o": normal(24, 8)}
    tensors |= {"bias": normal(24), "row": normal(1, 24)}
    return save(path, nodes, tensors, {"x": ("n", 48)}, ["a", "b", "d", "e"])


def run(path: Path, **inputs: np.ndarray) -> list[np.ndarray]:
    return support.load(path).run(None, inputs)


@pytest.mark.parametrize("per_channel", [True, False], ids=["channels", "tensors"])
@pytest.mark.parametrize("weight", ["int8", "uint8"])
def test_the_numbers_of_onnxruntime(tmp_path: Path, weight: str, per_channel: bool) -> None:
    model, theirs, ours = products(tmp_path / "m.onnx"), tmp_path / "theirs.onnx", tmp_path / "ours.onnx"
    extra = {"WeightSymmetric": per_channel or weight == "int8"}
    kind = QuantType.QInt8 if weight == "int8" else QuantType.QUInt8
    quantize_dynamic(model, theirs, per_channel=per_channel, weight_type=kind, extra_options=extra)
    options = ["--weight-type", weight, "--per-channel" if per_channel else "--per-tensor"]
    result = dynamic(model, ours, *options)
    assert (result["nodes_quantized"], result["nodes_in_float"]) == (5, 0)
    x = normal(6, 48)
    for expected, found in zip(run(theirs, x=x), run(ours, x=x), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_runtime_fuses_all_products(tmp_path: Path) -> None:
    model = products(tmp_path / "m.onnx")
    dynamic(model, tmp_path / "q.onnx")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(tmp_path / "q.onnx", options, providers=["CPUExecutionProvider"])
    kinds = [n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kinds.count("MatMulIntegerToFloat") + kinds.count("DynamicQuantizeMatMul") == 5
    assert kinds.count("DynamicQuantizeLinear") == 1, "one value of four readers is quantized once"


def test_tables_have_a_scale_for_each_row(tmp_path: Path) -> None:
    table = normal(50, 32)
    table[7] *= 20
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"], "table"), helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    model = save(tmp_path / "m.onnx", nodes, {"table": table, "w": normal(32, 8)}, {"ids": ("n",)}, ["x"])
    ids = np.arange(50)
    for options in ([], ["--weight-type", "uint8"]):
        dynamic(model, tmp_path / "q.onnx", "--op-types", "Gather", *options)
        found = run(tmp_path / "q.onnx", ids=ids)[0]
        expected = np.rint(table / (scale := np.abs(table).max(1, keepdims=True) / 127)) * scale
        np.testing.assert_allclose(found, expected, atol=1.01 * float(scale.max()) if options else 1e-6)
        assert support.sqnr([[table]], [[found]]) > 40, "ONNX Runtime's one scale for all: 22 dB"


def recurrent(path: Path, direction: str, hidden: int = 64, width: int = 32) -> Path:
    directions = 1 + (direction != "forward")
    shapes = {"W": (directions, 4 * hidden, width), "R": (directions, 4 * hidden, hidden), "B": (directions, 8 * hidden)}
    tensors = {k: np.float32(RNG.uniform(-1, 1, s) / np.sqrt(hidden)) for k, s in shapes.items()}
    node = helper.make_node("LSTM", ["x", "W", "R", "B"], ["y", "h"], "lstm", hidden_size=hidden, direction=direction)
    return save(path, [node], tensors, {"x": ("t", "n", width)}, ["y", "h"])


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_recurrent_layers(tmp_path: Path, direction: str) -> None:
    model = recurrent(tmp_path / "m.onnx", direction)
    x = normal(30, 2, 32)
    for per_channel in (True, False):
        quantize_dynamic(model, tmp_path / "theirs.onnx", per_channel=per_channel)
        dynamic(model, tmp_path / "q.onnx", "--per-channel" if per_channel else "--per-tensor")
        assert [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node] == ["DynamicQuantizeLSTM"]
        for expected, found in zip(run(tmp_path / "theirs.onnx", x=x), run(tmp_path / "q.onnx", x=x), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("hidden", [32, 64, 128])
def test_how_near_recurrent_layers_are(tmp_path: Path, hidden: int) -> None:
    """With scales whose sums saturate on no CPU."""
    model, x = recurrent(tmp_path / "m.onnx", "forward", hidden), normal(30, 2, 32)
    dynamic(model, tmp_path / "q.onnx", "--set", "weight-range=pairs")
    found = run(tmp_path / "q.onnx", x=x)
    assert min(support.sqnr([[e]], [[f]]) for e, f in zip(run(model, x=x), found, strict=True)) > 37.5


def stacked(path: Path) -> Path:
    """Two LSTMs behind one another: the first reads values of very different size, which one scale does not serve."""

    def weights(width: int, name: str) -> dict[str, np.ndarray]:
        shapes = {"W": (1, 256, width), "R": (1, 256, 64), "B": (1, 512)}
        return {k + name: np.float32(RNG.uniform(-1, 1, s) / 8) for k, s in shapes.items()}

    first, second = weights(32, "1"), weights(64, "2")
    first["W1"] /= np.float32(10.0 ** np.linspace(0, 4, 32))
    nodes = [
        helper.make_node("LSTM", ["x", "W1", "R1", "B1"], ["y1"], "first", hidden_size=64),
        helper.make_node("Squeeze", ["y1", "one"], ["z1"]),
        helper.make_node("LSTM", ["z1", "W2", "R2", "B2"], ["", "h2"], "second", hidden_size=64),
        helper.make_node("Squeeze", ["h2", "zero"], ["z2"]),
        helper.make_node("MatMul", ["z2", "V"], ["out"], "product"),
    ]
    tensors = {**first, **second, "V": normal(64, 16), "one": np.int64([1]), "zero": np.int64([0])}
    return save(path, nodes, tensors, {"x": ("t", "n", 32)}, ["out"])


@pytest.mark.parametrize("types", ["MatMul,LSTM", "LSTM", ""])
def test_a_recurrent_layer_that_does_harm_stays_in_float(tmp_path: Path, types: str) -> None:
    """What it does is measured as deployed, since no trial rounds as it does; and so is what is told. By default too."""
    model, sizes = stacked(tmp_path / "m.onnx"), np.float32(10.0 ** np.linspace(0, 4, 32))
    samples = [{"x": normal(20, 1, 32) * sizes} for _ in range(8)]
    data = support.save_samples(tmp_path / "d", samples)
    command = [
        "quantize",
        model,
        "-o",
        tmp_path / "q.onnx",
        "--calibration-data",
        data,
        *(["--op-types", types] if types else ["--optimize-for", "size"]),
        "--preset",
        "balanced",
    ]
    said = json.loads(support.detent(*command, "--no-bench", "--json").stdout)
    kinds = [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node]
    assert kinds.count("DynamicQuantizeLSTM") == kinds.count("LSTM") == 1
    assert said["nodes_quantized"] == (1 if types == "LSTM" else 2)
    assert said["nodes_in_float"] == (2 if types == "LSTM" else 1)
    assert any(note.startswith("LSTM 'first' stays in float: ") for note in said["notes"])
    pairs = [(run(model, **s)[0], run(tmp_path / "q.onnx", **s)[0]) for s in samples]
    assert said["accuracy"]["sqnr_db"] == pytest.approx(support.sqnr(*zip(*pairs, strict=True)), abs=0.1)
    assert said["accuracy"]["sqnr_db"] > 25
    assert said["accuracy"]["integer_macs"] == pytest.approx(0.57, abs=0.01)


@pytest.mark.parametrize("is_faster", [True, False])
def test_a_recurrent_layer_that_nobody_named_is_on_integers_where_that_is_faster(tmp_path: Path, is_faster: bool) -> None:
    model = recurrent(tmp_path / "m.onnx", "forward")
    data = support.save_samples(tmp_path / "d", [{"x": normal(30, 2, 32)} for _ in range(4)])
    table = tmp_path / "kernels.json"
    options = ["--preset", "balanced", "--optimize-for", "latency", "--set", f"kernel-table={table}"]
    command = ["quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", data, *options]
    assert support.detent(*command).returncode == 0
    kernels = json.loads(table.read_text())
    lstm = next(times for kernel, times in kernels["kernels"].items() if kernel.startswith("LSTM("))
    lstm["float"], lstm["integers"] = (20, 10) if is_faster else (10, 20)
    table.write_text(json.dumps(kernels))
    said = json.loads(support.detent(*command, "--json").stdout)
    kinds = [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node]
    assert ("DynamicQuantizeLSTM" in kinds) == is_faster
    assert said["faster_in_float"] == ([] if is_faster else ["lstm"])


ON_OLD_CPU = """
import sys, numpy as np, onnxruntime as ort
np.savez(sys.argv[3], *ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"]).run(None, dict(np.load(sys.argv[2]))))
"""


def test_no_sum_saturates_on_an_older_cpu(tmp_path: Path, old_cpu: dict[str, str]) -> None:
    """Where two products are added in 16 bits, as before VNNI, quantize_dynamic's LSTM is left with less than 20 dB."""
    cases = {"lstm": (recurrent(tmp_path / "lstm.onnx", "forward"), normal(30, 2, 32))}
    cases["products"] = (products(tmp_path / "products.onnx"), normal(20, 48))
    for name, (model, x) in cases.items():
        dynamic(model, tmp_path / "ours.onnx", "--set", "weight-range=pairs")
        quantize_dynamic(model, tmp_path / "theirs.onnx", per_channel=True)
        np.savez(tmp_path / "x.npz", x=x)
        expected, scores = run(model, x=x), {}
        for tool in ("ours", "theirs"):
            support.python(old_cpu, "-c", ON_OLD_CPU, tmp_path / f"{tool}.onnx", tmp_path / "x.npz", tmp_path / "y.npz")
            found = list(np.load(tmp_path / "y.npz").values())
            scores[tool] = min(support.sqnr([[e]], [[f]]) for e, f in zip(expected, found, strict=True))
        assert scores["ours"] > 36 > scores["theirs"] + 10, (name, scores)


def test_convolutions_where_they_are_named(tmp_path: Path) -> None:
    tensors = {"w": normal(8, 4, 3, 3), "b": normal(8), "d": normal(8, 1, 3, 3)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], "conv", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "d"], ["y"], "depthwise", group=8),
    ]
    model = save(tmp_path / "m.onnx", nodes, tensors, {"x": ("n", 4, 16, 16)}, ["y"])
    x = normal(2, 4, 16, 16)
    for weight in ("int8", "uint8"):
        result = dynamic(model, tmp_path / "q.onnx", "--op-types", "Conv", "--weight-type", weight)
        assert result["nodes_quantized"] == 2
        assert support.sqnr([run(model, x=x)], [run(tmp_path / "q.onnx", x=x)]) > 33
    line = support.detent("quantize", model, "-o", tmp_path / "no.onnx", "--activations", "dynamic")
    check(BAD_INPUT, "no weights to quantize", line.returncode, line.stderr, line.stdout)


def test_a_transformer(tmp_path: Path) -> None:
    """With samples it tells how near the results are; the same bytes again, and whatever the threads."""
    onnx.save(graphs.transformer(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.transformer_samples())
    result = dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx", "--calibration-data", data)
    assert result["accuracy"]["sqnr_db"] > 20
    assert any("whole batch" in note for note in result["notes"])
    for threads in (1, 3):
        dynamic(tmp_path / "m.onnx", tmp_path / "again.onnx", "--threads", threads)
        assert support.sha256(tmp_path / "again.onnx") == support.sha256(tmp_path / "q.onnx")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--method", "mse"], "--method means nothing with --activations dynamic"),
        (["--weights-only"], "--activations means nothing with --weights-only"),
        (["--weight-type", "int4"], "weights of 8 bits"),
        (["--op-types", "Relu"], "Relu has no form with dynamic activations"),
        (["--exclude-nodes", "nobody"], "nobody"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, options: list[str], says: str) -> None:
    model = products(tmp_path / "m.onnx")
    result = support.detent("quantize", model, "-o", tmp_path / "q.onnx", "--activations", "dynamic", *options)
    check(USAGE, says, result.returncode, result.stderr, result.stdout)
    assert not (tmp_path / "q.onnx").exists()


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    model = onnx.load(products(tmp_path / "m.onnx"))
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[0, 0] = np.nan
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "q"))
    onnx.save(model, tmp_path / "m.onnx")
    result = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--activations", "dynamic")
    check(BAD_INPUT, "weight 'q'.*holds NaN", result.returncode, result.stderr, result.stdout)
    told = dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx", "--set", "allow-nonfinite")
    assert any("stays in float" in note for note in told["notes"])
    assert {n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node} >= {"MatMul", "MatMulInteger"}


@pytest.mark.parametrize("opset", [17, 18])
def test_each_token_of_a_decoder_has_a_scale(tmp_path: Path, opset: int) -> None:
    """A decoder by the names of its inputs: one row is far larger than the others, and one is zero."""
    nodes = [
        helper.make_node("MatMul", ["input_ids", "w"], ["y"]),
        helper.make_node("Gemm", ["input_ids", "v", "b"], ["z"]),
        helper.make_node("Identity", ["past_key_values.0.key"], ["present"]),
    ]
    tensors = {"w": normal(64, 48), "v": normal(64, 48), "b": normal(48)}
    inputs = {"input_ids": ("n", 64), "past_key_values.0.key": ("n", 2, "past", 8)}
    save(tmp_path / "m.onnx", nodes, tensors, inputs, ["y", "z", "present"])
    model = onnx.load(tmp_path / "m.onnx")
    model.opset_import[0].version = opset
    onnx.save(model, tmp_path / "m.onnx")
    dynamic(tmp_path / "m.onnx", tmp_path / "d.onnx")
    rows = normal(6, 64)
    rows[0] *= 3000
    rows[1] = 0
    sample = {"input_ids": rows, "past_key_values.0.key": np.zeros((6, 2, 0, 8), np.float32)}
    y, z, _ = support.load(tmp_path / "d.onnx").run(None, sample)
    assert np.array_equal(y[1], np.zeros(48)) and np.array_equal(z[1], tensors["b"])
    for found, expected in ((y, rows @ tensors["w"]), (z, rows @ tensors["v"] + tensors["b"])):
        assert np.max(np.abs(found[2:] - expected[2:])) < 0.01 * np.max(np.abs(expected[2:]))
