"""Floats of 8 and 4 bits: stored as ml_dtypes rounds them, and read by onnx's reference as they are meant."""

import json

import graphs
import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from failures import USAGE
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support import Path

RNG = np.random.default_rng(11)
FLOAT = onnx.TensorProto.FLOAT
ROWS, COLUMNS = 96, 24
KINDS = {
    "float8e4m3fn": (ml_dtypes.float8_e4m3fn, 448.0),
    "float8e5m2": (ml_dtypes.float8_e5m2, 57344.0),
    "float4e2m1": (ml_dtypes.float4_e2m1fn, 6.0),
}


def products(path: Path, opset: int = 17, dtype: type = np.float32) -> Path:
    """A product and a Gemm with a transposed weight and a bias. Columns differ in size, and one is all zeros."""
    weight = RNG.standard_normal((ROWS, COLUMNS)) * np.exp(2 * RNG.standard_normal(COLUMNS))
    weight[:, 3] = 0
    other = RNG.standard_normal((COLUMNS, COLUMNS))
    tensors = {"w": weight, "t": other, "bias": RNG.standard_normal(COLUMNS)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "matmul"),
        helper.make_node("Gemm", ["a", "t", "bias"], ["y"], "gemm", transB=1),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    value = [helper.make_tensor_value_info(n, kind, ["n", c]) for n, c in (("x", ROWS), ("y", COLUMNS))]
    initializers = [numpy_helper.from_array(v.astype(dtype), k) for k, v in tensors.items()]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def stored(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    dtype, largest = KINDS[kind]
    return np.clip(values, -largest, largest).astype(dtype)


def same(found: np.ndarray, expected: np.ndarray) -> None:
    """Zeros may have either sign."""
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


def blocks_of(weight: np.ndarray, block: int) -> np.ndarray:
    """[blocks, block, columns]"""
    return weight.reshape(-1, block, weight.shape[1])


def reference(path: Path, x: np.ndarray) -> np.ndarray:
    onnx.checker.check_model(str(path), full_check=True)
    return ReferenceEvaluator(str(path)).run(None, {"x": x})[0]


def unfused(path: Path) -> ort.InferenceSession:
    """ONNX Runtime before 1.32 makes operators on integers of these pairs, which it then refuses."""
    return support.load(path, disable_quant_qdq="1")


def expected_output(model: Path, weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Of `products` with these weights in place of its own."""
    given = {**stored(model), **weights}
    return (x @ given["w"]) @ given["t"].T + given["bias"]


@pytest.mark.parametrize("block", [32, 0], ids=["blocks", "channels"])
@pytest.mark.parametrize("kind", ["float8e4m3fn", "float8e5m2"])
def test_floats_of_8_bits(tmp_path: Path, kind: str, block: int) -> None:
    model, out = products(tmp_path / "m.onnx"), tmp_path / "q.onnx"
    size = ["--block-size", block or "channel"]
    support.weights_only(model, out, "--weight-type", kind, "--set", "weights-method=nearest", "--op-types", "MatMul", *size)
    weight, found = stored(model)["w"], stored(out)
    cut = blocks_of(weight, block or ROWS)
    scales = np.abs(cut).max(axis=1, keepdims=True) / np.float32(KINDS[kind][1])
    elements = rounded(np.divide(cut, scales, out=np.zeros_like(cut), where=scales > 0), kind)
    same(found["w_F8"], elements.reshape(weight.shape))
    np.testing.assert_array_equal(found["w_scales"].reshape(scales.shape), scales)
    x = RNG.standard_normal((5, ROWS)).astype(np.float32)
    meant = (elements.astype(np.float32) * scales).reshape(weight.shape)
    np.testing.assert_allclose(reference(out, x), expected_output(model, {"w": meant}, x), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(support.load(out).run(None, {"x": x})[0], reference(out, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_all_values_and_what_lies_between_them(tmp_path: Path, kind: str) -> None:
    """With a scale of 1: each value of the type, the middle between neighbours, and what is next to that."""
    dtype, largest = KINDS[kind]
    codes = np.arange(1 << (4 if kind == "float4e2m1" else 8), dtype=np.uint8).view(dtype).astype(np.float32)
    values = np.unique(codes[np.isfinite(codes)])
    middles = (values[1:] + values[:-1]) / 2
    column = np.concatenate([values, middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)]).astype(np.float32)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, column.size])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4])],
            [numpy_helper.from_array(np.repeat(column[:, None], 4, axis=1), "w")],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    onnx.save(model, tmp_path / "m.onnx")
    support.weights_only(
        tmp_path / "m.onnx",
        tmp_path / "q.onnx",
        "--weight-type",
        kind,
        "--block-size",
        "channel",
        "--set",
        "weights-method=nearest",
    )
    found = stored(tmp_path / "q.onnx")
    np.testing.assert_array_equal(found["w_scales"], np.ones(4, np.float32))
    same(next(v for n, v in found.items() if n.startswith("w_F"))[:, 1], column.astype(dtype))
    assert np.abs(column).max() == largest


@pytest.mark.parametrize(
    ("options", "largest_exponent", "opset"),
    [
        (["--weight-type", "float8e4m3fn"], 8, 24),
        (["--weight-type", "float8e5m2"], 15, 24),
        (["--weight-type", "float4e2m1"], 2, 24),
        (["--bits", "8"], 6, 24),
        (["--bits", "4"], 2, 24),
    ],
    ids=["MXFP8 E4M3", "MXFP8 E5M2", "MXFP4", "MXINT8", "4-bit block floating point"],
)
def test_scales_that_are_powers_of_two(tmp_path: Path, options: list[str], largest_exponent: int, opset: int) -> None:
    model, out = products(tmp_path / "m.onnx"), tmp_path / "q.onnx"
    fixed = ["--set", "scale-type=float8e8m0", "--set", "weights-method=nearest", "--op-types", "MatMul"]
    support.weights_only(model, out, *options, *fixed)
    assert onnx.load(out).opset_import[0].version == opset
    weight, found = stored(model)["w"], stored(out)
    cut = blocks_of(weight, 32)
    largest = np.abs(cut).max(axis=1, keepdims=True)
    # OCP Microscaling Formats 1.0, 6.3: the exponent of the largest value less that of the largest element.
    exponents = np.floor(np.log2(np.where(largest > 0, largest, 1.0))) - np.where(largest > 0, largest_exponent, 0)
    scales = np.float32(2.0) ** exponents.astype(np.float32)
    same(found["w_scales"], scales[:, 0].astype(ml_dtypes.float8_e8m0fnu))
    name = next(n for n in found if n.startswith("w_") and n != "w_scales")
    if options[0] == "--bits":
        middle = 1 << int(options[1]) - 1
        elements = np.clip(np.rint(cut / scales), -middle, middle - 1)
    else:
        elements = rounded(cut / scales, options[1])
    same(found[name], elements.reshape(weight.shape))
    x = RNG.standard_normal((5, ROWS)).astype(np.float32)
    meant = (elements.astype(np.float32) * scales).reshape(weight.shape)
    np.testing.assert_allclose(reference(out, x), expected_output(model, {"w": meant}, x), rtol=1e-4, atol=1e-4)


def test_nvfp4_has_scales_of_two_levels(tmp_path: Path) -> None:
    model, out = products(tmp_path / "m.onnx"), tmp_path / "q.onnx"
    form = ["--weight-type", "float4e2m1", "--set", "scale-type=float8e4m3fn", "--block-size", 16]
    support.weights_only(model, out, *form, "--set", "weights-method=nearest", "--op-types", "MatMul")
    weight, found = stored(model)["w"], stored(out)
    cut = blocks_of(weight, 16)
    common = np.abs(weight).max() / np.float32(6 * 448)
    np.testing.assert_array_equal(found["w_scales_scale"], common)
    codes = rounded(np.abs(cut).max(axis=1) / np.float32(6) / common, "float8e4m3fn")
    same(found["w_scales"], codes)
    scales = (codes.astype(np.float32) * common)[:, None]
    elements = rounded(np.divide(cut, scales, out=np.zeros_like(cut), where=scales > 0), "float4e2m1")
    same(found["w_F4"], elements.reshape(weight.shape))
    x = RNG.standard_normal((5, ROWS)).astype(np.float32)
    meant = (elements.astype(np.float32) * scales).reshape(weight.shape)
    np.testing.assert_allclose(reference(out, x), expected_output(model, {"w": meant}, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [["--set", "scale-type=float8e4m3fn", "--block-size", "16"], ["--set", "scale-type=float8e8m0"], []],
    ids=["NVFP4", "MXFP4", "float scales"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_search_leaves_less_error_than_the_largest_value(tmp_path: Path, dtype: type, options: list[str]) -> None:
    model = products(tmp_path / "m.onnx", dtype=dtype)
    form = ["--weight-type", "float4e2m1", *options]
    x = RNG.standard_normal((64, ROWS)).astype(dtype)
    expected = ReferenceEvaluator(str(model)).run(None, {"x": x})[0].astype(np.float64)
    ratios = []
    for method in ("nearest", "search"):
        out = tmp_path / f"{method}.onnx"
        result = support.weights_only(model, out, *form, "--set", f"weights-method={method}")
        found = reference(out, x)
        assert found.dtype == dtype
        assert np.mean((found.astype(np.float64) - expected) ** 2) / np.mean(expected**2) < 0.05
        assert any("was not run" in note for note in result["notes"])
        ratios.append({weight["name"]: weight["sqnr_db"] for weight in result["weights"]})
    assert all(ratios[1][name] > ratio > 12 for name, ratio in ratios[0].items())


@pytest.mark.parametrize("kind", ["float8e4m3fn", "float8e5m2"])
def test_products_of_floats(tmp_path: Path, kind: str) -> None:
    """Activations with a scale for each tensor, weights for each channel; the bias stays as it is."""
    model, out = products(tmp_path / "m.onnx"), tmp_path / "q.onnx"
    samples = [{"x": RNG.standard_normal((8, ROWS)).astype(np.float32)} for _ in range(3)]
    data = support.save_samples(tmp_path / "samples", samples)
    support.quantize(model, out, data, "--weight-type", kind, "--activation-type", kind, "--no-bench")
    made, found, weight = onnx.load(out), stored(out), stored(model)["w"]
    assert made.opset_import[0].version == 19
    np.testing.assert_array_equal(found["bias"], stored(model)["bias"])
    dtype, largest = KINDS[kind]
    assert not any(node.op_type == "QuantizeLinear" and "y" in node.input[0] for node in made.graph.node)
    np.testing.assert_array_equal(found["x_scale"], max(np.abs(s["x"]).max() for s in samples) / np.float32(largest))
    assert found["x_zero_point"].dtype == dtype
    scales = np.abs(weight).max(axis=0) / np.float32(largest)
    scales[scales == 0] = 1
    same(found["w_quantized"], rounded(weight / scales, kind))
    expected = support.outputs(support.load(model), samples)
    session = unfused(out)
    assert support.sqnr(expected, support.outputs(session, samples)) > (22 if kind == "float8e4m3fn" else 16)
    for sample in samples:
        np.testing.assert_allclose(session.run(None, sample)[0], reference(out, sample["x"]), rtol=1e-3, atol=1e-2)
    done = support.detent("compare", model, out, "--calibration-data", data, "--json")
    assert json.loads(done.stdout)["outputs"][0]["sqnr_db"] > 16


ACTIVATIONS: dict[str, tuple[list[float], dict[str, float]]] = {
    "Relu": ([], {}),
    "Clip": ([0, 1], {}),
    "Clip from below": ([0], {}),
    "LeakyRelu": ([], {"alpha": 0.1}),
    "Sigmoid": ([], {}),
    "HardSwish": ([], {}),
    "Max": ([0], {}),
    "Relu, Clip": ([-1, 1], {}),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", ["float8e4m3fn", "float8e5m2"])
@pytest.mark.parametrize("product", ["MatMul", "Gemm", "Conv"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_stands_before_a_pair_is_computed(tmp_path: Path, activation: str, product: str, kind: str) -> None:
    """ONNX Runtime's optimizer takes pairs for those of integers, and leaves out what integers would do."""
    bounds, attributes = ACTIVATIONS[activation]
    weights = {n: RNG.standard_normal((16, 16, 1, 1) if product == "Conv" else (16, 16)) / 4 for n in ("w", "t")}
    tensors = weights | {f"bound{i}": np.array(bound) for i, bound in enumerate(bounds)}
    types = activation.removesuffix(" from below").split(", ")
    nodes = [helper.make_node(product, ["x", "w"], ["a"], "first")]
    for i, op_type in enumerate(types):
        inputs = [nodes[-1].output[0], *(tensors if i == len(types) - 1 else [])]
        nodes.append(helper.make_node(op_type, [n for n in inputs if n not in weights], [f"b{i}"], **attributes))
    nodes.append(helper.make_node(product, [nodes[-1].output[0], "t"], ["y"], "second"))
    value = [helper.make_tensor_value_info(n, FLOAT, ["n", 16, *([4, 4] if product == "Conv" else [])]) for n in "xy"]
    initializers = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in tensors.items()]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], initializers)
    model, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    x = RNG.standard_normal((8, 16, 4, 4) if product == "Conv" else (64, 16)).astype(np.float32)
    data = support.save_samples(tmp_path / "samples", [{"x": x}])
    support.quantize(model, out, data, "--weight-type", kind, "--activation-type", kind, "--no-bench")
    found = unfused(out).run(None, {"x": x})
    assert support.sqnr([reference(out, x)[None]], [found]) > (34 if kind == "float8e4m3fn" else 28)  # roundings at a middle
    assert support.sqnr(support.outputs(support.load(model), [{"x": x}]), [found]) > (20 if kind == "float8e4m3fn" else 15)


WEIGHTS = ["--weights-only"]


def test_what_floats_of_8_bits_do_harm_to_stays_in_float(tmp_path: Path) -> None:
    """The first product takes a large constant away, and with it most digits that a float of 8 bits has."""
    b = graphs.Builder(7)
    first = b.rng.normal(size=(16, 256)).astype(np.float32)
    h = b.add("Relu", b.add("MatMul", "x", b.constant("first", first - first.mean(0))))
    for name in ("second", "third"):
        h = b.add("Relu", b.add("MatMul", h, b.weight(name, 256, 256, scale=0.1)))
    onnx.save(b.model({"x": (graphs.FLOAT, ["n", 16])}, [h]), tmp_path / "m.onnx")
    samples = [{"x": (100 + b.rng.normal(size=(4, 16))).astype(np.float32)} for _ in range(8)]
    data = support.save_samples(tmp_path / "data", samples)
    options = ("quantize", tmp_path / "m.onnx", "--calibration-data", data, "--format", "fp8", "--json")
    found = {}
    for name, more in {"floats": ["--preset", "floats"], "plain": []}.items():
        done = support.detent(*options, "-o", tmp_path / f"{name}.onnx", *more)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        types = {t.name: t.data_type for t in onnx.load(tmp_path / f"{name}.onnx").graph.initializer if t.dims == [16, 256]}
        found[name] = (json.loads(done.stdout)["accuracy"]["sqnr_db"], types)
    assert found["floats"][0] > found["plain"][0] + 10
    assert found["floats"][1] == {"first": onnx.TensorProto.FLOAT}


FLOAT8 = ["--weight-type", "float8e4m3fn"]
BOTH = [*FLOAT8, "--activation-type", "float8e4m3fn"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([*WEIGHTS, *FLOAT8, "--bits", "4"], "leave out --bits"),
        ([*WEIGHTS, *FLOAT8, "--weights-form", "matmul-nbits"], "--set weights-form=qdq"),
        ([*WEIGHTS, *FLOAT8, "--set", "weight-asymmetric"], "no zero points"),
        ([*WEIGHTS, *FLOAT8, "--max-size", "1MiB"], "--max-size"),
        ([*WEIGHTS, *FLOAT8, "--set", "weights-method=gptq"], "nearest or search"),
        ([*WEIGHTS, *FLOAT8, "--set", "node-bits=matmul=4"], "--set node-bits"),
        ([*WEIGHTS, "--weight-type", "int4"], "--bits"),
        ([*WEIGHTS, "--set", "scale-type=float8e4m3fn"], "no standard form"),
        ([*WEIGHTS, "--set", "scale-type=float8e8m0", "--bits", "2"], "no standard form"),
        (FLOAT8, "do not go together"),
        (["--activation-type", "float8e5m2"], "do not go together"),
        ([*BOTH, "--preset", "balanced"], "--preset floats or plain"),
        ([*BOTH, "--method", "mse"], "minmax or percentile"),
        ([*BOTH, "--finetune", "gptq"], "--finetune"),
        ([*BOTH, "--quant-format", "qoperator"], "qoperator"),
        (["--weight-type", "float4e2m1", "--activation-type", "float8e4m3fn"], "--weights-only"),
        (["--activations", "dynamic", *FLOAT8], "int8 or uint8"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None,
)
def test_what_has_no_standard_form_is_refused(tmp_path: Path, options: list[str], words: str) -> None:
    model = products(tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "samples", [{"x": np.ones((1, ROWS), np.float32)}])
    given = [] if "--weights-only" in options and "gptq" not in options[-1] else ["--calibration-data", data]
    done = support.detent("quantize", model, "-o", tmp_path / "q.onnx", *given, *options)
    assert done.returncode == USAGE
    assert words in done.stderr
    assert not (tmp_path / "q.onnx").exists()
