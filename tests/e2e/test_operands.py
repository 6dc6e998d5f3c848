"""Weights in unusual places: constants on the left of products, batched, vectors, and channels that hold zeros only."""

import graphs
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, numpy_helper
from support import Path, Sample

FLOAT = TensorProto.FLOAT
TYPES = [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")]
# Operator, shape of the constant, of the input, whether the constant comes first, attributes.
OPERANDS = {
    "left": ("MatMul", (6, 8), [8, 5], True, {}),
    "left of a batch": ("MatMul", (6, 8), [2, 8, 5], True, {}),
    "batch on the left": ("MatMul", (2, 6, 8), [2, 8, 5], True, {}),
    "vector on the left": ("MatMul", (8,), [8, 5], True, {}),
    "batch": ("MatMul", (2, 8, 6), [2, 5, 8], False, {}),
    "square batch": ("MatMul", (2, 8, 8), [2, 5, 8], False, {}),
    "vector": ("MatMul", (8,), [5, 8], False, {}),
    "first of a Gemm": ("Gemm", (6, 8), [8, 5], True, {}),
    "first of a Gemm, transposed": ("Gemm", (8, 6), [8, 5], True, {"transA": 1}),
    "second of a Gemm that transposes the first": ("Gemm", (8, 6), [8, 5], False, {"transA": 1}),
}


def operand(case: str) -> tuple[onnx.ModelProto, list[Sample]]:
    op, shape, read, first, attributes = OPERANDS[case]
    b = graphs.Builder(31)
    # Rows and columns of unlike sizes: scales along a wrong axis show in the results.
    weight = b.rng.normal(0, 0.3, shape) * np.linspace(0.2, 2, shape[-1])
    x = b.add("Relu", b.add("Mul", "x", b.constant("two", 2)))
    inputs = [b.constant("w", weight), x] if first else [x, b.constant("w", weight)]
    y = b.add(op, *inputs, name="product", **attributes)
    rng = np.random.default_rng(32)
    return b.model({"x": (FLOAT, read)}, [y]), [{"x": rng.normal(size=read).astype(np.float32)} for _ in range(4)]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("preset", ["plain", "balanced"])
@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("case", OPERANDS)
def test_constant_operands_of_products(case: str, types: tuple[str, str], preset: str, tmp_path: Path) -> None:
    """The result loads in ONNX Runtime, runs, and is close to the float model."""
    model, samples = operand(case)
    onnx.save(model, tmp_path / "model.onnx")
    data = support.save_samples(tmp_path / "data", samples)
    options = ["--activation-type", types[0], "--weight-type", types[1], "--per-channel", "--set", "sensitivity=off"]
    support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, "--preset", preset, *options)
    found = support.outputs(support.check_model(tmp_path / "q.onnx"), samples)
    reference = support.outputs(support.load(tmp_path / "model.onnx"), samples)
    assert support.sqnr(reference, found) > 25


def depthwise() -> onnx.ModelProto:
    """Convolutions with pruned channels."""
    b = graphs.Builder(33)
    weight = b.rng.normal(0, 0.3, (32, 1, 3, 3))
    weight[[3, 17]] = 0
    x = b.add("Conv", "x", b.weight("w1", 32, 3, 3, 3), b.weight("b1", 32), name="first")
    x = b.add("Conv", x, b.constant("w2", weight), b.weight("b2", 32), name="pruned", group=32, pads=[1] * 4)
    return b.model({"x": (FLOAT, [1, 3, 16, 16])}, [b.add("Conv", x, b.weight("w3", 8, 32, 1, 1), name="last")])


def test_channels_of_zeros_have_the_zero_point_of_the_others(tmp_path: Path) -> None:
    """ONNX Runtime's depthwise kernel wants one zero point for all channels."""
    onnx.save(depthwise(), tmp_path / "model.onnx")
    rng = np.random.default_rng(34)
    samples = [{"x": rng.normal(size=(1, 3, 16, 16)).astype(np.float32)} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    options = ["--preset", "balanced", "--set", "sensitivity=off", "--weight-type", "uint8", "--set", "weight-symmetric"]
    support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, *options)
    tensors = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert set(tensors["w2_zero_point"]) == {128}
    assert (tensors["w2_quantized"][[3, 17]] == 128).all()
    assert tensors["w2_scale"][3] == 1


def gemms(beta: float) -> onnx.ModelProto:
    """The first bias has two axes and therefore stays in float."""
    b = graphs.Builder(35)
    x = b.add("Gemm", "x", b.weight("w1", 16, 12), b.weight("b1", 1, 12, scale=3), name="first", beta=beta)
    return b.model({"x": (FLOAT, [4, 16])}, [b.add("Gemm", x, b.weight("w2", 12, 8), b.weight("b2", 8), name="second")])


def dense_samples(count: int = 16) -> list[Sample]:
    rng = np.random.default_rng(36)
    mixed = rng.normal(size=(5, 16))  # inputs that go together, so that the rounding of weights can be traded
    return [{"x": (rng.normal(size=(4, 5)) @ mixed + 0.5).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_biases_that_beta_leaves_out(beta: float, tmp_path: Path) -> None:
    onnx.save(gemms(beta), tmp_path / "model.onnx")
    samples = dense_samples()
    data = support.save_samples(tmp_path / "data", samples)
    tuning = ["--weight-type", "int4", "--finetune", "gptq", "--set", "update-bias"]
    report = support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, *tuning)
    assert [layer["name"] for layer in report["layers"]] == ["first", "second"]
    tensors = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    given = {t.name: numpy_helper.to_array(t) for t in gemms(beta).graph.initializer}
    assert np.isfinite(tensors["b1"]).all()
    assert np.array_equal(tensors["b1"], given["b1"]) == (beta == 0)
    reference = support.outputs(support.load(tmp_path / "model.onnx"), samples)
    assert support.sqnr(reference, support.outputs(support.check_model(tmp_path / "q.onnx"), samples)) > 15


def colliding() -> onnx.ModelProto:
    """Nodes and values of the float model have the names that Q/DQ nodes and their tensors usually get."""
    b = graphs.Builder(37)
    x = b.add("Relu", b.add("MatMul", "x", b.weight("w1", 16, 12), name="w1_DequantizeLinear"), name="w2_DequantizeLinear")
    y = b.add("MatMul", x, b.weight("w2", 12, 8), name="second")
    y = b.add("Mul", y, b.constant("w2_scale", 0.5), name="w2_quantized")
    return b.model({"x": (FLOAT, [4, 16])}, [b.add("MatMul", y, b.weight("w2_quantized", 8, 4), name="third")])


def test_layers_are_tuned_whatever_generated_names_collide(tmp_path: Path) -> None:
    onnx.save(colliding(), tmp_path / "model.onnx")
    data = support.save_samples(tmp_path / "data", dense_samples())
    report = support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, "--weight-type", "int4", "--finetune", "gptq")
    assert [layer["name"] for layer in report["layers"]] == ["w1_DequantizeLinear", "second", "third"]
    assert all(layer["tuned"] for layer in report["layers"])
