"""Weights in blocks that the runtime dequantizes at each run: filters, recurrent nets, experts, stacks of matrices. And what
is odd about a weight, or too much for a runtime."""

import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT, Place
from onnx import TensorProto, helper, numpy_helper
from support import Path

RNG = np.random.default_rng(21)


def save(path: Path, nodes: list, ends: list, tensors: dict[str, np.ndarray], domains: tuple = (), opset: int = 17) -> Path:
    """`ends`: the input and the output, each a name and a shape."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends)
    initializers = [numpy_helper.from_array(np.asarray(t), n) for n, t in tensors.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def gauss(*shape: int, scale: float = 0.2) -> np.ndarray:
    return (scale * RNG.standard_normal(shape)).astype(np.float32)


def stored(path: Path, weight: str, axis: int, block: int) -> np.ndarray:
    """The values that the tensors of a DequantizeLinear stand for, by its definition."""
    tensors = {t.name: t for t in onnx.load(path).graph.initializer}
    integers = next(t for n, t in tensors.items() if n.startswith(f"{weight}_Q"))
    values = numpy_helper.to_array(integers).astype(np.float64)
    scales = numpy_helper.to_array(tensors[f"{weight}_scales"]).astype(np.float64)
    zero = np.zeros(scales.shape)
    if f"{weight}_zero_points" in tensors:
        zero = numpy_helper.to_array(tensors[f"{weight}_zero_points"]).astype(np.float64)
    if block:
        scales, zero = (np.repeat(a, block, axis) for a in (scales, zero))
    else:
        shape = [-1 if a == axis else 1 for a in range(values.ndim)]
        scales, zero = scales.reshape(shape), zero.reshape(shape)
    return (values - zero) * scales


FILTERS = {
    "conv": ("Conv", (16, 8, 3, 3), 0, 0),
    "one pixel": ("Conv", (16, 64, 1, 1), 1, 32),
    "transposed": ("ConvTranspose", (8, 16, 3, 3), 0, 0),
    "transposed, one pixel": ("ConvTranspose", (8, 64, 1, 1), 1, 32),
}


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("case", FILTERS)
def test_filters(tmp_path: Path, case: str, bits: int, symmetric: bool) -> None:
    op, shape, axis, block = FILTERS[case]
    weight = gauss(*shape)
    channels, outputs = (shape[1], shape[0]) if op == "Conv" else shape[:2]
    ends = [("x", [1, channels, 6, 6]), ("y", [1, outputs, "h", "w"])]
    node = helper.make_node(op, ["x", "w"], ["y"], "filter")
    model = save(tmp_path / "m.onnx", [node], ends, {"w": weight})
    sign = "weight-symmetric" if symmetric else "weight-asymmetric"
    result = support.weights_only(model, tmp_path / "q.onnx", "--op-types", op, "--bits", bits, "--set", sign)
    assert any("opset 17 was raised to 21" in note for note in result["notes"])
    values = stored(tmp_path / "q.onnx", "w", axis, block)
    assert support.sqnr([[weight]], [[values]]) > (17 if bits == 4 else 40)
    # The result is that of a float model with the values that are stored.
    support.check_model(tmp_path / "q.onnx")
    same = save(tmp_path / "same.onnx", [node], ends, {"w": values.astype(np.float32)})
    sample = [{"x": gauss(1, channels, 6, 6, scale=1)}]
    found = [support.outputs(support.load(path), sample) for path in (same, tmp_path / "q.onnx")]
    np.testing.assert_allclose(found[1][0][0], found[0][0][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_recurrent_nets(tmp_path: Path, op: str, gates: int, bits: int) -> None:
    weights = {"W": gauss(1, gates * 16, 32), "R": gauss(1, gates * 16, 16)}
    node = helper.make_node(op, ["x", "W", "R"], ["y"], "net", hidden_size=16)
    ends = [("x", [5, 1, 32]), ("y", [5, 1, 1, 16])]
    model = save(tmp_path / "m.onnx", [node], ends, weights)
    support.weights_only(model, tmp_path / "q.onnx", "--op-types", op, "--bits", bits, "--block-size", 16)
    values = {n: stored(tmp_path / "q.onnx", n, 2, 16).astype(np.float32) for n in weights}
    assert all(support.sqnr([[weights[n]]], [[values[n]]]) > (20 if bits == 4 else 44) for n in weights)
    sample = [{"x": gauss(5, 1, 32, scale=1)}]
    same = save(tmp_path / "same.onnx", [node], ends, values)
    found = [support.outputs(support.load(path), sample) for path in (same, tmp_path / "q.onnx")]
    np.testing.assert_allclose(found[1][0][0], found[0][0][0], rtol=1e-4, atol=1e-5)


def test_experts(tmp_path: Path) -> None:
    """The weights of MoE's experts in the form qdq, as constants like others."""
    weights = {"fc1": gauss(4, 32, 64), "fc2": gauss(4, 64, 32)}
    node = helper.make_node("MoE", ["x", "p", "fc1", "", "fc2"], ["y"], "moe", domain="com.microsoft", k=1)
    router = helper.make_node("MatMul", ["x", "router"], ["p"], "router")
    ends = [("x", ["n", 32]), ("y", ["n", 32])]
    model = save(tmp_path / "m.onnx", [router, node], ends, {**weights, "router": gauss(32, 4)}, ("com.microsoft",))
    result = support.weights_only(model, tmp_path / "q.onnx", "--op-types", "MoE", "--block-size", 16, "--weights-form", "qdq")
    assert {w["name"] for w in result["weights"]} == {"fc1", "fc2"}
    for name, weight in weights.items():
        assert support.sqnr([[weight]], [[stored(tmp_path / "q.onnx", name, 2, 16)]]) > 20
    types = [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node]
    assert types == ["MatMul", "DequantizeLinear", "DequantizeLinear", "MoE"]


def test_stacks_of_matrices(tmp_path: Path) -> None:
    weight = gauss(4, 32, 64)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "stack")
    other = helper.make_node("MatMul", ["y", "v"], ["z"], "other")
    ends = [("x", [4, 3, 32]), ("z", [4, 3, 32])]
    model = save(tmp_path / "m.onnx", [node, other], ends, {"w": weight, "v": gauss(64, 32)})
    result = support.weights_only(model, tmp_path / "q.onnx")
    assert any("'stack'" in note and "--op-types" in note for note in result["notes"])
    assert [w["name"] for w in result["weights"]] == ["v"]
    support.weights_only(model, tmp_path / "q.onnx", "--op-types", "MatMul", "--set", "accuracy-level=1")
    assert support.sqnr([[weight]], [[stored(tmp_path / "q.onnx", "w", 2, 32)]]) > 20
    sample = [{"x": gauss(4, 3, 32, scale=1)}]
    found = [support.outputs(support.load(path), sample) for path in (model, tmp_path / "q.onnx")]
    assert support.sqnr(*found) > 16


def product(path: Path, weight: np.ndarray, opset: int = 17) -> Path:
    ends = [("x", ["n", weight.shape[0]]), ("y", ["n", weight.shape[1]])]
    return save(path, [helper.make_node("MatMul", ["x", "w"], ["y"], "p")], ends, {"w": weight}, opset=opset)


@pytest.mark.parametrize("shape", [(0, 16), (16, 0)])
def test_weights_without_elements_stay(tmp_path: Path, shape: tuple[int, int]) -> None:
    place = Place(tmp_path)
    model = product(place.inputs / "m.onnx", np.zeros(shape, np.float32))
    place.refuses(
        BAD_INPUT, "no weights that can be stored in blocks.*no elements", "quantize", model, "-o", place.output, "--weights-only"
    )


@pytest.mark.parametrize("form", ["matmul-nbits", "qdq"])
@pytest.mark.parametrize(("rows", "block"), [(40, 32), (17, 16), (100, 64)])
def test_blocks_that_do_not_fit(tmp_path: Path, rows: int, block: int, form: str) -> None:
    """The last one is shorter."""
    weight = gauss(rows, 48)
    model = product(tmp_path / "m.onnx", weight)
    support.weights_only(model, tmp_path / "q.onnx", "--block-size", block, "--weights-form", form, "--set", "accuracy-level=1")
    sample = [{"x": gauss(5, rows, scale=1)}]
    found = [support.outputs(support.load(path), sample) for path in (model, tmp_path / "q.onnx")]
    assert support.sqnr(*found) > 16


def test_blocks_that_do_not_fit_a_table_or_a_net(tmp_path: Path) -> None:
    place = Place(tmp_path)
    node = helper.make_node("LSTM", ["x", "W", "R"], ["y"], "net", hidden_size=12)
    weights = {"W": gauss(1, 48, 20), "R": gauss(1, 48, 12)}
    model = save(place.inputs / "m.onnx", [node], [("x", [5, 1, 20]), ("y", [5, 1, 1, 12])], weights)
    options = ["--weights-only", "--op-types", "LSTM", "--block-size", 16]
    place.refuses(BAD_INPUT, "do not fill whole blocks", "quantize", model, "-o", place.output, *options)


@pytest.mark.parametrize("form", ["matmul-nbits", "qdq"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("value", [0.0, 0.7, -3.0])
def test_constant_blocks(tmp_path: Path, value: float, bits: int, form: str) -> None:
    """They are exact, asymmetric as well."""
    weight = np.full((64, 32), value, np.float32)
    weight[:, ::2] = 0
    model = product(tmp_path / "m.onnx", weight)
    result = support.weights_only(model, tmp_path / "q.onnx", "--bits", bits, "--weights-form", form, "--set", "accuracy-level=1")
    assert result["weights"][0]["sqnr_db"] is None or result["weights"][0]["sqnr_db"] > 100
    sample = [{"x": gauss(3, 64, scale=1)}]
    exact = support.ort.SessionOptions()  # without rounding of activations
    exact.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    found = [support.ort.InferenceSession(path, exact).run(None, sample[0])[0] for path in (model, tmp_path / "q.onnx")]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_infinite_weights_are_named(tmp_path: Path, dtype: type) -> None:
    place = Place(tmp_path)
    weight = gauss(64, 32).astype(dtype)
    weight[3, 4] = -np.inf
    kind = TensorProto.FLOAT if dtype == np.float32 else TensorProto.FLOAT16
    x, y = (helper.make_tensor_value_info(n, kind, ["n", d]) for n, d in (("x", 64), ("y", 32)))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "p")], "g", [x], [y], [numpy_helper.from_array(weight, "w")]
    )
    model = place.inputs / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    place.refuses(BAD_INPUT, "weight 'w' holds NaN or infinite", "quantize", model, "-o", place.output, "--weights-only")


@pytest.mark.parametrize(("opset", "bits", "needed"), [(13, 4, 21), (17, 2, 25), (21, 2, 25)])
def test_opsets_are_raised(tmp_path: Path, opset: int, bits: int, needed: int) -> None:
    model = product(tmp_path / "m.onnx", gauss(64, 32), opset)
    result = support.weights_only(model, tmp_path / "q.onnx", "--weights-form", "qdq", "--bits", bits)
    assert any(f"opset {opset} was raised to {needed}" in note for note in result["notes"])
    support.check_model(tmp_path / "q.onnx")
    support.weights_only(model, tmp_path / "same.onnx", "--bits", bits)
    assert onnx.load(tmp_path / "same.onnx").opset_import[0].version == opset
