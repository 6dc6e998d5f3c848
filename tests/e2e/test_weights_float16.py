"""Weights alone in blocks in models of 16-bit floats: activations stay as they are, and scales have their type."""

import ml_dtypes
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import _pybind_state as ort_native
from support import Path

RNG = np.random.default_rng(3)


def raw(name: str, kind: int, array: np.ndarray) -> onnx.TensorProto:
    return helper.make_tensor(name, kind, array.shape, np.ascontiguousarray(array).tobytes(), raw=True)


def products(path: Path, kind: int = TensorProto.FLOAT16, scale: float = 0.05) -> dict[str, np.ndarray]:
    """A table, a product and a Gemm with a bias; their weights, as float64."""
    dtype = np.float16 if kind == TensorProto.FLOAT16 else ml_dtypes.bfloat16
    shapes = {"table": (40, 64), "w": (64, 48), "g": (32, 48), "bias": (32,)}
    weights = {n: (scale * RNG.standard_normal(s)).astype(dtype) for n, s in shapes.items()}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], "table"),
        helper.make_node("MatMul", ["x", "w"], ["a"], "matmul"),
        helper.make_node("Gemm", ["a", "g", "bias"], ["y"], "gemm", transB=1),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    ends = [helper.make_tensor_value_info(n, kind, ["n", d]) for n, d in (("x", 64), ("a", 48), ("y", 32))]
    graph = helper.make_graph(nodes, "g", [ids], ends, [raw(n, kind, w) for n, w in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return {n: w.astype(np.float64) for n, w in weights.items()}


def unpacked(array: np.ndarray, bits: int) -> np.ndarray:
    parts = [array >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*array.shape[:-1], -1)


def numbers(tensor: onnx.TensorProto, bits: int) -> np.ndarray:
    values = numpy_helper.to_array(tensor)
    return unpacked(values, bits) if tensor.data_type == TensorProto.UINT8 else values


def stored(path: Path, name: str, bits: int, rows: int, block: int) -> np.ndarray:
    """The values [rows, columns] that MatMulNBits' tensors stand for, as its definition says."""
    tensors = {t.name: t for t in onnx.load(path).graph.initializer}
    scales = numpy_helper.to_array(tensors[f"{name}_scales"]).astype(np.float64)
    integers = numbers(tensors[f"{name}_Q{bits}"], bits).reshape(*scales.shape, -1).astype(np.float64)
    zero = np.full(scales.shape, 1 << bits - 1)
    if f"{name}_zero_points" in tensors:
        zero = numbers(tensors[f"{name}_zero_points"], bits)[:, : scales.shape[1]]
    return ((integers - zero[..., None]) * scales[..., None]).reshape(len(scales), -1)[:, :rows].T


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", [4, 8])
def test_nearest_has_the_bytes_of_onnxruntime(tmp_path: Path, bits: int, symmetric: bool) -> None:
    weight = products(tmp_path / "m.onnx")["w"].astype(np.float16)
    form = ["--bits", bits, "--set", "weight-symmetric" if symmetric else "weight-asymmetric", "--op-types", "MatMul"]
    support.weights_only(tmp_path / "m.onnx", tmp_path / "q.onnx", "--set", "weights-method=nearest", *form)
    found = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    integers, scales = np.zeros((48, 2, 4 * bits), np.uint8), np.zeros(96, np.float16)
    zero_points = np.zeros(48 * 2 * bits // 8, np.uint8)
    getattr(ort_native, f"quantize_matmul_{bits}bits")(integers, weight, scales, zero_points, 32, 48, 64, symmetric)
    np.testing.assert_array_equal(found[f"w_Q{bits}"], integers)
    np.testing.assert_array_equal(found["w_scales"].ravel(), scales)
    if not symmetric:
        np.testing.assert_array_equal(found["w_zero_points"].ravel(), zero_points)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["matmul-nbits", "qdq"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_every_runtime_gives_what_the_format_says(tmp_path: Path, bits: int, form: str) -> None:
    products(tmp_path / "m.onnx")
    quantized = tmp_path / "q.onnx"
    options = ["--bits", bits, "--weights-form", form, "--block-size", 16, "--set", "accuracy-level=1"]
    support.weights_only(tmp_path / "m.onnx", quantized, *options)
    types = [node.op_type for node in onnx.load(quantized).graph.node]
    # The values, from MatMulNBits' tensors in both forms: they are the same.
    reference = tmp_path / "reference.onnx"
    support.weights_only(tmp_path / "m.onnx", reference, "--bits", bits, "--block-size", 16)
    tables = stored(reference, "table", bits, 64, 16).T if bits > 2 and form == "matmul-nbits" else None
    float_table = next(numpy_helper.to_array(t) for t in onnx.load(tmp_path / "m.onnx").graph.initializer if t.name == "table")
    bias = next(numpy_helper.to_array(t) for t in onnx.load(tmp_path / "m.onnx").graph.initializer if t.name == "bias")
    x = (float_table.astype(np.float64) if tables is None else tables.reshape(40, 64))[:9]
    a = x @ stored(reference, "w", bits, 64, 16)
    y = a @ stored(reference, "g", bits, 48, 16) + bias.astype(np.float64)
    assert types == {"matmul-nbits": ["Gather" if bits == 2 else "GatherBlockQuantized", "MatMulNBits", "MatMulNBits"]}.get(
        form, ["Gather", "DequantizeLinear", "MatMul", "DequantizeLinear", "Gemm"]
    )
    old = {"1.21.1", "1.24.1"} if bits == 2 else {"1.21.1"} if bits == 8 and form == "matmul-nbits" else set()
    for runtime in support.RUNTIMES:
        found = support.run_in(runtime, quantized, tmp_path / "r.npz", ids=np.arange(9))
        if runtime.name in old and found is None:
            continue  # it has no such integers
        assert found is not None, runtime.name
        assert [f.dtype for f in found] == [np.float16] * 3
        # Runtimes that make MatMulNBits of DequantizeLinear round activations to 8 bits.
        for expected, value in zip((x, a, y), found, strict=True):
            assert support.sqnr([[expected]], [[value.astype(np.float64)]]) > (30 if form == "qdq" else 55), runtime.name


def test_scales_below_the_normal_numbers(tmp_path: Path) -> None:
    """Scales of small weights have few bits left in float16: integers are those of the scales that are stored."""
    weight = products(tmp_path / "m.onnx", scale=2e-5)["w"]
    for bits, least in ((4, 14), (8, 20)):
        options = ["--bits", bits, "--op-types", "MatMul", "--set", "weights-method=nearest", "--set", "weight-symmetric"]
        result = support.weights_only(tmp_path / "m.onnx", tmp_path / "q.onnx", *options)
        found = stored(tmp_path / "q.onnx", "w", bits, 64, 32)
        assert support.sqnr([[weight]], [[found]]) > least
        np.testing.assert_allclose(result["weights"][0]["sqnr_db"], support.sqnr([[weight]], [[found]]), atol=0.01)


def test_samples_help_as_with_float32(tmp_path: Path) -> None:
    """They run through the model in float32."""
    mix = RNG.standard_normal((6, 64)) * 0.3
    weight = (0.1 * RNG.standard_normal((64, 48))).astype(np.float16)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT16, ["n", d]) for n, d in (("x", 64), ("y", 48)))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "p")], "g", [x], [y], [numpy_helper.from_array(weight, "w")]
    )
    model = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    samples = [
        {"x": (RNG.standard_normal((40, 6)) @ mix + 0.01 * RNG.standard_normal((40, 64))).astype(np.float16)} for _ in range(9)
    ]
    data = support.save_samples(tmp_path / "data", samples[:8])
    in_float = support.outputs(support.load(model), samples[8:])
    db = {}
    for name, options in {"without": [], "with": ["--calibration-data", data]}.items():
        result = support.weights_only(model, tmp_path / f"{name}.onnx", "--set", "accuracy-level=1", *options)
        db[name] = support.sqnr(in_float, support.outputs(support.load(tmp_path / f"{name}.onnx"), samples[8:]))
    assert db["with"] > db["without"] + 6
    assert result["samples"] == 8 and result["accuracy"]["sqnr_db"] > db["without"]


@pytest.mark.parametrize("form", ["matmul-nbits", "qdq"])
def test_bfloat16_is_written_and_not_run(tmp_path: Path, form: str) -> None:
    weight = products(tmp_path / "m.onnx", TensorProto.BFLOAT16)["w"]
    result = support.weights_only(tmp_path / "m.onnx", tmp_path / "q.onnx", "--bits", 8, "--weights-form", form, "--bench")
    assert any("has no operators for on CPUs" in note for note in result["notes"])
    if form == "qdq":
        onnx.checker.check_model(tmp_path / "q.onnx", full_check=True)
    tensors = {t.name: t for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert tensors["w_scales"].data_type == TensorProto.BFLOAT16
    if form == "matmul-nbits":
        assert support.sqnr([[weight]], [[stored(tmp_path / "q.onnx", "w", 8, 64, 32)]]) > 40
    assert next(w for w in result["weights"] if w["name"] == "w")["sqnr_db"] > 40
