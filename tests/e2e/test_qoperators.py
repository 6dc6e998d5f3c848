"""The QOperator form: the same results as Q/DQ, by operators that ONNX Runtime runs as they stand."""

import collections

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from failures import USAGE, check
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, quantize_static
from support import Path

FORM = ["--quant-format", "qoperator"]


def kinds(path: Path) -> collections.Counter:
    return collections.Counter(n.op_type for n in onnx.load(path).graph.node)


def both(model: Path, data: Path, folder: Path, *options: object) -> tuple[Path, Path, dict]:
    pairs, operators = folder / "pairs.onnx", folder / "operators.onnx"
    support.quantize(model, pairs, data, *options)
    return pairs, operators, support.quantize(model, operators, data, *FORM, *options)


def steps_apart(pairs: Path, operators: Path, samples: list[support.Sample]) -> float:
    """The largest difference, over the largest result."""
    expected = support.outputs(support.load(pairs), samples)
    found = support.outputs(support.load(operators), samples)
    return max(
        float(np.abs(np.float64(e) - f).max() / np.abs(e).max())
        for one, other in zip(expected, found, strict=True)
        for e, f in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("options", [[], ["--per-tensor"], ["--activation-type", "int8", "--set", "activation-symmetric"]], ids=str)
def test_a_convolutional_net(tmp_path: Path, options: list[str]) -> None:
    onnx.save(graphs.small_cnn(), tmp_path / "m.onnx")
    samples = graphs.cnn_samples()
    data = support.save_samples(tmp_path / "data", samples)
    pairs, operators, told = both(tmp_path / "m.onnx", data, tmp_path, *options)
    support.check_model(operators)
    assert kinds(operators)["Conv"] == 0
    assert kinds(operators)["QLinearConv"] == kinds(pairs)["Conv"]
    assert kinds(operators)["DequantizeLinear"] < kinds(pairs)["DequantizeLinear"] / 2
    apart = steps_apart(pairs, operators, samples)
    if "int8" in options and "vnni" not in Path("/proc/cpuinfo").read_text():
        assert apart < 0.2  # without VNNI full-range weights saturate, and the runtime gives pairs other kernels
    else:
        assert apart == 0, "the runtime makes these operators of the pairs itself"
    assert any("operators on integers: " in note for note in told["notes"])


def test_a_trained_classifier(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [{"x": rng.random((1, 3, 48, 192), dtype=np.float32)} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    model = support.MODELS / "ppocr_cls.onnx"
    pairs, operators, _ = both(model, data, tmp_path)
    theirs = tmp_path / "theirs.onnx"
    quantize_static(model, theirs, support.Reader(samples), quant_format=QuantFormat.QOperator, per_channel=True)
    assert kinds(operators)["QLinearConv"] >= kinds(theirs)["QLinearConv"]
    assert kinds(operators)["Conv"] == 0
    assert steps_apart(pairs, operators, samples) < 0.02


def every_operator() -> onnx.ModelProto:
    b = graphs.Builder(5)
    x = b.add("Conv", "x", b.weight("w", 8, 3, 3, 3), b.weight("b", 8), name="conv")
    s = b.add("Sigmoid", x)
    x = b.add("Mul", x, s)
    x = b.add("LeakyRelu", b.add("Add", x, s), alpha=0.25)
    x = b.add("Concat", x, s, axis=1)
    x = b.add("AveragePool", b.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), kernel_shape=[3, 3])
    x = b.add("Transpose", b.add("GlobalAveragePool", x), perm=[0, 2, 3, 1])
    x = b.add("Reshape", x, b.constant("shape", [-1, 16], np.int64))
    x = b.add("Gemm", x, b.weight("g", 16, 12), b.weight("h", 12), name="gemm")
    x = b.add("MatMul", x, b.weight("m", 12, 10), name="matmul")
    x = b.add("Softmax", x, axis=-1)
    return b.model({"x": (TensorProto.FLOAT, ["n", 3, 14, 14])}, [x])


def test_every_operator_that_has_a_form(tmp_path: Path) -> None:
    onnx.save(every_operator(), tmp_path / "m.onnx")
    rng = np.random.default_rng(2)
    samples = [{"x": rng.standard_normal((2, 3, 14, 14)).astype(np.float32)} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    pairs, operators, _ = both(tmp_path / "m.onnx", data, tmp_path)
    support.check_model(operators)
    found = kinds(operators)
    assert {k for k in found if k.startswith("Q")} == {
        *("QuantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd", "QLinearMul", "QLinearSigmoid"),
        *("QLinearLeakyRelu", "QLinearSoftmax", "QLinearConcat", "QLinearAveragePool", "QLinearGlobalAveragePool"),
    }
    assert found["QuantizeLinear"] == found["DequantizeLinear"] == 1, "what comes in and what goes out"
    assert steps_apart(pairs, operators, samples) < 0.03


def test_what_has_no_such_form_stays_between_pairs(tmp_path: Path) -> None:
    onnx.save(graphs.transformer(), tmp_path / "m.onnx")
    samples = graphs.transformer_samples()
    data = support.save_samples(tmp_path / "data", samples)
    for options in ([], ["--activation-type", "int16"], ["--preset", "balanced"]):
        pairs, operators, _ = both(tmp_path / "m.onnx", data, tmp_path, *options)
        support.check_model(operators)
        assert steps_apart(pairs, operators, samples) < 0.05
    result = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--weights-only", *FORM)
    check(USAGE, "--quant-format means nothing with --weights-only", result.returncode, result.stderr, result.stdout)


def test_a_product_without_bias_and_a_scaled_one(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "a"], ["y"], "no bias", transB=1),
        helper.make_node("Gemm", ["y", "b", "c"], ["z"], "scaled", alpha=0.5, beta=2.0),
    ]
    rng = np.random.default_rng(4)
    tensors = {"a": rng.standard_normal((6, 9)), "b": rng.standard_normal((6, 5)), "c": rng.standard_normal(5)}
    initializers = [numpy_helper.from_array(np.float32(v), k) for k, v in tensors.items()]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", w]) for n, w in (("x", 9), ("z", 5))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    samples = [{"x": rng.standard_normal((4, 9)).astype(np.float32)} for _ in range(3)]
    data = support.save_samples(tmp_path / "data", samples)
    pairs, operators, _ = both(tmp_path / "m.onnx", data, tmp_path)
    assert kinds(operators)["QGemm"] == 1
    assert kinds(operators)["Gemm"] == 1, "a QGemm's bias would have another scale"
    assert steps_apart(pairs, operators, samples) < 0.01


@pytest.mark.parametrize("form", ["pairs", "operators"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_share_that_is_told_is_what_the_runtime_computes_on_integers(tmp_path: Path, tied: bool, form: str) -> None:
    """Rows of a table of int8 in front of a product whose results are uint8: the runtime turns pairs, but no operators."""
    rng, table, width = np.random.default_rng(5), 64, 48
    shapes = {"first": (width, width), "second": (width, 64), "third": (64, width)}
    constants = {name: rng.standard_normal(shape).astype(np.float32) / 8 for name, shape in shapes.items()}
    constants["table"] = rng.standard_normal((table, width)).astype(np.float32)
    constants["head"] = constants["table"] if tied else rng.standard_normal((table, width)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"], "look_up")]
    value = "x"
    for name in shapes:
        nodes.append(helper.make_node("MatMul", [value, name], [f"{name}.y"], name))
        value = f"{name}.y"
    nodes.append(helper.make_node("Transpose", ["table" if tied else "head"], ["turned"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", [value, "turned"], ["y"], "last"))
    tensors = [numpy_helper.from_array(v, k) for k, v in constants.items() if k != "head" or not tied]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 9])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 9, table])
    graph = helper.make_graph(nodes, "g", [ids], [y], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", [{"ids": rng.integers(0, table, (1, 9))} for _ in range(8)])
    options = ["--preset", "balanced", "--optimize-for", "size", *(FORM if form == "operators" else [])]
    told = support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *options)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    ort.InferenceSession(tmp_path / "q.onnx", options, providers=["CPUExecutionProvider"])
    work = {**{name: 9 * a * b for name, (a, b) in shapes.items()}, "last": 9 * table * width}
    in_float = sum(work[n.name] for n in onnx.load(tmp_path / "fused.onnx").graph.node if n.op_type == "MatMul")
    assert told["accuracy"]["integer_macs"] == pytest.approx(1 - in_float / sum(work.values()), abs=1e-3)
