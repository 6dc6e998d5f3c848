"""What `detent inspect` says of the operators that the runtime makes of a quantized model's products."""

import json

import graphs
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path

RNG = np.random.default_rng(7)


def inspected(model: Path, *options: object) -> dict:
    result = support.detent("inspect", model, "--json", *options)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def run_as(model: Path) -> dict[str, str]:
    return {p["name"]: p["runs_as"] + (" in float" if p["in_float"] else "") for p in inspected(model)["products"]}


def optimized_types(model: Path, path: Path) -> list[str]:
    """What Python's onnxruntime writes of its graph."""
    options = support.ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    support.ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("form", ["matmul-nbits", "qdq"])
def test_weights_in_blocks(tmp_path: Path, form: str) -> None:
    onnx.save(graphs.transformer(), tmp_path / "m.onnx")
    done = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--weights-only", "--weights-form", form)
    assert done.returncode == 0, done.stderr
    found = run_as(tmp_path / "q.onnx")
    types = optimized_types(tmp_path / "q.onnx", tmp_path / "optimized.onnx")
    assert list(found.values()).count("MatMulNBits") == types.count("MatMulNBits") == 6
    assert set(found.values()) <= {"MatMulNBits", "GatherBlockQuantized"}
    assert inspected(tmp_path / "q.onnx")["runtime"] == support.ort.__version__


def test_integers(tmp_path: Path) -> None:
    for name, model, samples in (
        ("cnn", graphs.small_cnn(), graphs.cnn_samples()),
        ("transformer", graphs.transformer(), graphs.transformer_samples()),
    ):
        onnx.save(model, tmp_path / f"{name}.onnx")
        data = support.save_samples(tmp_path / name, samples)
        support.quantize(tmp_path / f"{name}.onnx", tmp_path / "q.onnx", data)
        found = list(run_as(tmp_path / "q.onnx").values())
        types = optimized_types(tmp_path / "q.onnx", tmp_path / "optimized.onnx")
        for kind in ("QLinearConv", "QLinearMatMul", "QGemm"):
            assert found.count(kind) == types.count(kind), (name, kind)
        assert any(found.count(kind) for kind in ("QLinearConv", "QLinearMatMul"))


def test_what_is_left_in_float_is_named(tmp_path: Path) -> None:
    """A DequantizeLinear that two products share, blocks along the second axis, and a Conv with float activations."""
    weight = RNG.integers(0, 255, (64, 64)).astype(np.uint8)
    tensors = [
        numpy_helper.from_array(weight, "q"),
        numpy_helper.from_array(RNG.random((2, 64)).astype(np.float32), "s"),
        numpy_helper.from_array(RNG.random((64, 2)).astype(np.float32), "across"),
        numpy_helper.from_array(np.float32(RNG.random((64, 64))), "plain"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], "dq", axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("MatMul", ["a", "w"], ["b"], "second"),
        helper.make_node("DequantizeLinear", ["q", "across"], ["v"], "dq2", axis=1, block_size=32),
        helper.make_node("MatMul", ["b", "v"], ["c"], "third"),
        helper.make_node("MatMul", ["c", "plain"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 64]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    path = tmp_path / "q.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    assert run_as(path) == {"first": "MatMul in float", "second": "MatMul in float", "third": "MatMul in float"}
    text = support.detent("inspect", path).stdout
    assert "MatMul in float 3" in text
    assert "dequantized and computed in float: MatMul first, MatMul second, MatMul third\n" in text


def test_float_models_have_none(tmp_path: Path) -> None:
    onnx.save(graphs.small_cnn(), tmp_path / "m.onnx")
    found = inspected(tmp_path / "m.onnx")
    assert "products" not in found and "runtime" not in found
    assert "quantized layers" not in support.detent("inspect", tmp_path / "m.onnx").stdout


def test_a_runtime_that_fuses_less(tmp_path: Path) -> None:
    """Gemm with blocks: fused since 1.26."""
    onnx.save(graphs.transformer(), tmp_path / "m.onnx")
    done = support.detent(
        "quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--weights-only", "--weights-form", "qdq", "--bits", 8
    )
    assert done.returncode == 0, done.stderr
    older = next((support.MODELS.parent / "deps" / "runtimes" / "1.24.1" / "onnxruntime" / "capi").glob("libonnxruntime.so.*"))
    found = inspected(tmp_path / "q.onnx", "--runtime", older)
    assert found["runtime"] == "1.24.1"
    assert all(p["in_float"] for p in found["products"])  # 8 bits: since 1.26


@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_an_activation_that_is_read_in_float_leaves_the_product_in_integers(activation: str, product: str, tmp_path: Path) -> None:
    """The runtime alone would compute such a product in float, and dequantize its weight in every run."""
    b = graphs.Builder(5)
    x = b.add(product, "x", b.weight("w", 32, 32), name="product")
    bounds = (b.constant("low", -1), b.constant("high", 3)) if activation == "Clip" else ()
    x = b.add("Erf", b.add(activation, x, *bounds, name="activation"))
    model = b.model({"x": (TensorProto.FLOAT, [4, 32])}, [x])
    onnx.save(model, tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", [{"x": np.float32(RNG.standard_normal((4, 32)))} for _ in range(4)])
    fused = {}
    for preset in ("plain", "balanced"):
        options = ["--preset", preset, "--op-types", product]
        support.quantize(tmp_path / "m.onnx", tmp_path / f"{preset}.onnx", data, *options)
        fused[preset] = optimized_types(tmp_path / f"{preset}.onnx", tmp_path / "optimized.onnx")
    assert {"MatMulIntegerToFloat", "QGemm", "QLinearMatMul"} & set(fused["balanced"])
    reference, found = (
        support.outputs(support.load(tmp_path / f"{n}.onnx"), support.load_samples(data)) for n in ("m", "balanced")
    )
    assert support.sqnr(reference, found, 0) > 30


IN_INTEGERS = "--preset balanced --no-bench --optimize-for size --set sensitivity=off --set weight-range=reduced".split()


@pytest.mark.parametrize("swapped", [False, True], ids=["product first", "product second"])
@pytest.mark.parametrize(("axes", "barriers"), [(2, 2), (3, 0)])
def test_sums_of_products_and_values(tmp_path: Path, axes: int, barriers: int, swapped: bool) -> None:
    """Of two axes, the runtime would make a Gemm in float of the product and the sum."""
    b = graphs.Builder(3)
    x = "x"
    for i in range(2):
        y = b.add("MatMul", b.add("Tanh", x), b.weight(f"w{i}", 64, 64, scale=0.1), name=f"p{i}")
        x = b.add("Add", *((x, y) if swapped else (y, x)), name=f"sum{i}")
    onnx.save(b.model({"x": (TensorProto.FLOAT, ["N", 64] if axes == 2 else ["B", "N", 64])}, [x]), tmp_path / "m.onnx")
    rng = np.random.default_rng(4)
    samples = [{"x": rng.normal(size=(2, 9, 64)[3 - axes :]).astype(np.float32)} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *IN_INTEGERS)
    types = optimized_types(tmp_path / "q.onnx", tmp_path / "optimized.onnx")
    assert types.count("MatMulIntegerToFloat") == 2, types
    assert (types.count("Gemm"), types.count("Max")) == (0, barriers)
    sessions = support.load(tmp_path / "m.onnx"), support.check_model(tmp_path / "q.onnx")
    assert support.sqnr(*(support.outputs(session, samples) for session in sessions)) > 30


def test_sums_of_two_products(tmp_path: Path) -> None:
    """The runtime would make a Gemm in float of either of them."""
    b = graphs.Builder(3)
    parts = [b.add("MatMul", b.add("Tanh", "x"), b.weight(f"w{i}", 64, 64, scale=0.1), name=f"p{i}") for i in range(2)]
    onnx.save(b.model({"x": (TensorProto.FLOAT, ["N", 64])}, [b.add("Erf", b.add("Add", *parts))]), tmp_path / "m.onnx")
    samples = [{"x": np.float32(np.random.default_rng(i).normal(size=(9, 64)))} for i in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *IN_INTEGERS)
    types = optimized_types(tmp_path / "q.onnx", tmp_path / "optimized.onnx")
    assert (types.count("MatMulIntegerToFloat"), types.count("Gemm")) == (2, 0), types
    sessions = support.load(tmp_path / "m.onnx"), support.check_model(tmp_path / "q.onnx")
    assert support.sqnr(*(support.outputs(session, samples) for session in sessions)) > 30


def test_weights_belong_to_the_layer_that_reads_them(tmp_path: Path) -> None:
    """Not to the DequantizeLinear between."""
    onnx.save(graphs.small_cnn(batch=1), tmp_path / "m.onnx")
    support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", support.save_samples(tmp_path / "d", graphs.cnn_samples()))
    told = inspected(tmp_path / "q.onnx")
    by_type = {kind: [la["parameters"] for la in told["layers"] if la["op_type"] == kind] for kind in ("Conv", "DequantizeLinear")}
    assert min(by_type["Conv"]) > 0
    of_pairs = [p for p in by_type["DequantizeLinear"] if p > 2]  # of an activation: a scale and a zero point
    assert not of_pairs


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("opset", [17, 21])
def test_products_of_three_axes_with_biases_stay_integers(tmp_path: Path, opset: int, kind: str) -> None:
    """ONNX Runtime would make a Gemm of two axes of each, in float where no QuantizeLinear reads it."""
    b = graphs.Builder(4)
    x = "x"
    for i in range(3):
        y = b.add("Add", b.add("MatMul", x, b.weight(f"w{i}", 64, 64)), b.weight(f"b{i}", 64))
        x = b.add("Sin", y)
    onnx.save(b.model({"x": (TensorProto.FLOAT, [1, 9, 64])}, [x], opset), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "d", [{"x": np.float32(RNG.normal(size=(1, 9, 64)))} for _ in range(4)])
    command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", data, "--no-bench", "--json"]
    done = support.detent(*command, "--preset", "balanced", "--activation-type", kind)
    assert done.returncode == 0, done.stderr
    types = optimized_types(tmp_path / "q.onnx", tmp_path / "optimized.onnx")
    assert types.count("MatMulIntegerToFloat") == 3 and "Gemm" not in types and "MatMul" not in types
    assert json.loads(done.stdout)["accuracy"]["integer_macs"] == 1
