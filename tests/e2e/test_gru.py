"""GRU: ONNX Runtime has none on integers, so that its weights are what becomes smaller. The state is carried from one call
to the next, and the expected values are those of the operator's formulas in NumPy."""

import json

import numpy as np
import onnx
import pytest
import support
from failures import USAGE, Place
from onnx import TensorProto, helper, numpy_helper
from support import Path

INPUT, HIDDEN, CALLS = 32, 48, 6
RNG = np.random.default_rng(31)
WEIGHTS = {
    "W": 0.3 * RNG.standard_normal((1, 3 * HIDDEN, INPUT)),
    "R": 0.2 * RNG.standard_normal((1, 3 * HIDDEN, HIDDEN)),
    "B": 0.2 * RNG.standard_normal((1, 6 * HIDDEN)),
    "head.w": 0.2 * RNG.standard_normal((HIDDEN, 8)),
}
Weights = dict[str, np.ndarray]


def model(path: Path, linear: int) -> Path:
    """A GRU with a state that goes in and comes out, and a product behind it."""
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in WEIGHTS.items()]
    tensors.append(numpy_helper.from_array(np.array([1]), "axis"))
    nodes = [
        helper.make_node(
            "GRU", ["x", "W", "R", "B", "", "h"], ["steps", "h_out"], "gru", hidden_size=HIDDEN, linear_before_reset=linear
        ),
        helper.make_node("Squeeze", ["steps", "axis"], ["rows"], "rows"),
        helper.make_node("MatMul", ["rows", "head.w"], ["y"], "head"),
    ]
    info = helper.make_tensor_value_info
    state = (TensorProto.FLOAT, [1, 1, HIDDEN])
    ins = [info("x", TensorProto.FLOAT, ["T", 1, INPUT]), info("h", *state)]
    outs = [info("y", TensorProto.FLOAT, ["T", 1, 8]), info("h_out", *state)]
    graph = helper.make_graph(nodes, "g", ins, outs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def sequences() -> list[np.ndarray]:
    """Of one stream, call by call, of different lengths."""
    rng = np.random.default_rng(32)
    return [rng.standard_normal((4 + 3 * i, 1, INPUT)).astype(np.float32) for i in range(CALLS)]


def sigmoid(value: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-value))


def by_formula(weights: Weights, linear: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """What the head gives for the whole stream, and the state before each call."""
    w, r = (np.split(weights[name][0].astype(np.float64), 3) for name in "WR")
    wb, rb = (np.split(part, 3) for part in np.split(weights["B"][0], 2))
    h, states, rows = np.zeros(HIDDEN), [], []
    for x in sequences():
        states.append(h)
        for step in x[:, 0]:
            z, reset = (sigmoid(w[i] @ step + r[i] @ h + wb[i] + rb[i]) for i in range(2))
            inner = reset * (r[2] @ h + rb[2]) if linear else r[2] @ (reset * h) + rb[2]
            h = (1 - z) * np.tanh(w[2] @ step + inner + wb[2]) + z * h
            rows.append(h)
    return np.array(rows) @ weights["head.w"], states


def as_run(path: Path) -> np.ndarray:
    """The same of a model, which gets its own state back."""
    session = support.load(path)
    h = np.zeros((1, 1, HIDDEN), np.float32)
    rows = []
    for x in sequences():
        y, h = session.run(None, {"x": x, "h": h})
        rows.append(y.reshape(-1, 8))
    return np.concatenate(rows)


def samples(folder: Path, linear: int) -> Path:
    """With the states that the model really meets."""
    _, states = by_formula(WEIGHTS, linear)
    pairs = zip(sequences(), states, strict=True)
    return support.save_samples(folder, [{"x": x, "h": h.reshape(1, 1, -1).astype(np.float32)} for x, h in pairs])


def read_from_integers(path: Path, name: str) -> np.ndarray:
    """What the DequantizeLinear that the GRU reads gives, as the onnx package computes it."""
    whole = onnx.load(path)
    gru = next(node for node in whole.graph.node if node.op_type == "GRU")
    read = gru.input[1 if name == "W" else 2]
    node = next(node for node in whole.graph.node if read in node.output)
    assert node.op_type == "DequantizeLinear"
    tensors = [tensor for tensor in whole.graph.initializer if tensor.name in node.input]
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info(read, TensorProto.FLOAT, None)], tensors)
    alone = helper.make_model(graph, opset_imports=whole.opset_import, ir_version=whole.ir_version)
    return onnx.reference.ReferenceEvaluator(alone).run(None, {})[0]


def sqnr(expected: np.ndarray, found: np.ndarray) -> float:
    return support.sqnr([[expected]], [[found]])


@pytest.mark.parametrize("linear", [0, 1])
@pytest.mark.parametrize(("bits", "limit"), [(8, 40), (4, 15)])
def test_weights_only(tmp_path: Path, bits: int, limit: float, linear: int) -> None:
    path = model(tmp_path / "m.onnx", linear)
    options = ["--op-types", "GRU", "--bits", bits, "--block-size", 16]
    said = support.weights_only(path, tmp_path / "q.onnx", *options)
    assert {w["name"]: w["bits"] for w in said["weights"]} == {"W": bits, "R": bits}
    stored = {name: read_from_integers(tmp_path / "q.onnx", name) for name in "WR"}
    expected, _ = by_formula(WEIGHTS | stored, linear)
    np.testing.assert_allclose(as_run(tmp_path / "q.onnx"), expected, rtol=1e-3, atol=1e-4)
    assert sqnr(by_formula(WEIGHTS, linear)[0], as_run(tmp_path / "q.onnx")) > limit


def test_weights_only_with_samples(tmp_path: Path) -> None:
    """Weights of other operators are rounded by the samples, which hold states."""
    path = model(tmp_path / "m.onnx", 1)
    data = samples(tmp_path / "data", 1)
    options = ["--op-types", "GRU,MatMul", "--bits", 4, "--block-size", 16, "--calibration-data", data]
    support.weights_only(path, tmp_path / "q.onnx", *options)
    assert sqnr(by_formula(WEIGHTS, 1)[0], as_run(tmp_path / "q.onnx")) > 15


@pytest.mark.parametrize(("bits", "limit"), [(8, 25), (4, 10)])
@pytest.mark.parametrize("preset", ["balanced", "plain"])
def test_static(tmp_path: Path, preset: str, bits: int, limit: float) -> None:
    """Where it is named: integers that are stored, beside activations with scales from the samples."""
    path = model(tmp_path / "m.onnx", 1)
    data = samples(tmp_path / "data", 1)
    options = ["--preset", preset, "--op-types", "GRU,MatMul", "--weight-type", f"int{bits}", "--no-bench"]
    said = support.quantize(path, tmp_path / "q.onnx", data, *options, "--optimize-for", "size")
    assert said["nodes_quantized"] >= 2
    for name in "WR":
        assert sqnr(WEIGHTS[name], read_from_integers(tmp_path / "q.onnx", name)) > (30 if bits == 8 else 8)
    assert sqnr(by_formula(WEIGHTS, 1)[0], as_run(tmp_path / "q.onnx")) > limit


def stored(path: Path, name: str) -> np.ndarray:
    """What a Cast and a Mul make of integers when the model is loaded."""
    whole = onnx.load(path)
    product = next(node for node in whole.graph.node if name in node.output)
    cast = next(node for node in whole.graph.node if product.input[0] in node.output)
    assert (product.op_type, cast.op_type) == ("Mul", "Cast")
    tensors = {t.name: numpy_helper.to_array(t) for t in whole.graph.initializer}
    integers, scale = tensors[cast.input[0]], tensors[product.input[1]]
    assert integers.dtype == np.int8
    assert scale.shape == (*integers.shape[:2], 1)
    return integers * scale


@pytest.mark.parametrize("linear", [0, 1])
def test_by_default_its_weights_are_integers_that_become_floats_when_it_is_loaded(tmp_path: Path, linear: int) -> None:
    path = model(tmp_path / "m.onnx", linear)
    data = samples(tmp_path / "data", linear)
    said = support.quantize(path, tmp_path / "q.onnx", data, "--preset", "balanced")
    assert any("become floats when the model is loaded: 1 node" in note for note in said["notes"]), said["notes"]
    weights = {name: stored(tmp_path / "q.onnx", name) for name in "WR"}
    for name, found in weights.items():
        steps = np.abs(WEIGHTS[name]).max(-1, keepdims=True) / 127
        assert np.all(np.abs(found - WEIGHTS[name]) <= steps * 0.501)
    assert sqnr(by_formula(WEIGHTS | weights, linear)[0], as_run(tmp_path / "q.onnx")) > 28  # the head is on integers
    assert (tmp_path / "q.onnx").stat().st_size < 0.4 * path.stat().st_size
    planned = support.detent("plan", path, "--calibration-data", data, "--preset", "balanced", "--json")
    assert json.loads(planned.stdout)["output_bytes"] < 0.4 * path.stat().st_size
    for options in (["--exclude-nodes", "gru"], ["--exclude-op-types", "GRU"]):
        support.quantize(path, tmp_path / "float.onnx", data, "--preset", "balanced", *options)
        assert {t.name for t in onnx.load(tmp_path / "float.onnx").graph.initializer} >= {"W", "R"}


def test_alone_in_a_model(tmp_path: Path) -> None:
    """Nothing else could be quantized, and the speed of the layer stays as it is."""
    path = model(tmp_path / "m.onnx", 1)
    whole = onnx.load(path)
    del whole.graph.node[1:]
    del whole.graph.output[0]
    whole.graph.node[0].output[0] = ""
    onnx.save(whole, path)
    data = samples(tmp_path / "data", 1)
    said = support.quantize(path, tmp_path / "q.onnx", data, "--preset", "balanced")
    assert said["nodes_quantized"] == 1
    assert stored(tmp_path / "q.onnx", "R").shape == (1, 3 * HIDDEN, HIDDEN)
    sample = support.load_samples(data)[0]
    results = [support.outputs(support.load(file), [sample]) for file in (path, tmp_path / "q.onnx")]
    assert support.sqnr(*results) > 35
    assert said["accuracy"]["sqnr_db"] > 35


def test_weights_that_8_bits_would_harm_are_kept(tmp_path: Path) -> None:
    """Each row has a weight so large that its scale leaves nothing of the others; what it is multiplied by is 0."""
    path = model(tmp_path / "m.onnx", 1)
    whole = onnx.load(path)
    large = WEIGHTS["W"].copy()
    large[..., 0] = 80
    for tensor in whole.graph.initializer:
        if tensor.name == "W":
            tensor.CopyFrom(numpy_helper.from_array(large.astype(np.float32), "W"))
    onnx.save(whole, path)
    rows = [{"x": np.pad(x[..., 1:], ((0, 0), (0, 0), (1, 0))), "h": np.zeros((1, 1, HIDDEN), np.float32)} for x in sequences()]
    data = support.save_samples(tmp_path / "data", rows)
    said = support.quantize(path, tmp_path / "q.onnx", data, "--preset", "balanced")
    assert any("'gru' keeps its weights" in note for note in said["notes"]), said["notes"]
    assert {t.name for t in onnx.load(tmp_path / "q.onnx").graph.initializer} >= {"W", "R"}


def test_left_in_float_and_told(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", 1)
    data = samples(tmp_path / "data", 1)
    said = support.quantize(path, tmp_path / "q.onnx", data, "--no-bench", "--optimize-for", "size")
    assert any("GRU" in note and "ONNX Runtime has no integer GRU" in note for note in said["notes"]), said["notes"]
    assert {t.name for t in onnx.load(tmp_path / "q.onnx").graph.initializer} >= {"W", "R"}
    assert sqnr(by_formula(WEIGHTS, 1)[0], as_run(tmp_path / "q.onnx")) > 25


def test_with_dynamic_activations_its_weights_are_integers(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", 1)
    said = support.quantize(path, tmp_path / "q.onnx", samples(tmp_path / "data", 1), "--no-bench", "--activations", "dynamic")
    assert any("become floats when the model is loaded: 1 node" in note for note in said["notes"]), said["notes"]
    weights = {name: stored(tmp_path / "q.onnx", name) for name in "WR"}
    for name, weight in weights.items():
        steps = np.abs(WEIGHTS[name]).max(-1, keepdims=True) / 127
        assert np.all(np.abs(weight - WEIGHTS[name]) <= steps * 0.501)
    assert sqnr(by_formula(WEIGHTS | weights, 1)[0], as_run(tmp_path / "q.onnx")) > 35  # the head is on integers


def test_no_form_with_dynamic_activations(tmp_path: Path) -> None:
    place = Place(tmp_path)
    path = model(place.inputs / "m.onnx", 1)
    options = ["--activations", "dynamic", "--op-types", "GRU"]
    place.refuses(USAGE, "GRU has no form with dynamic activations", "quantize", path, "-o", place.output, *options)
