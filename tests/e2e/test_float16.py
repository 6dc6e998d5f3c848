"""float16 and bfloat16: safe for values, sums and constants that the types cannot hold, with few casts; and back."""

from collections import Counter

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import rounded
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path, Sample

FLOAT, FLOAT16, BFLOAT16, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT64
BOOL = TensorProto.BOOL


def convert(model: onnx.ModelProto, data: list[Sample] | None, folder: Path, *options: str) -> tuple[onnx.ModelProto, dict]:
    """The model with 16-bit floats, checked and loaded, and what detent says of it."""
    source, output = folder / "model.onnx", folder / "low.onnx"
    onnx.save(model, source)
    command = ["quantize", source, "-o", output, "--json", "--preset", "none"]
    if data is not None:
        command += ["--calibration-data", support.save_samples(folder / "data", data)]
    result = support.detent(*command, *(options or ("--float", "16")))
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    converted = onnx.load(output)
    onnx.checker.check_model(converted, full_check=True)
    if "bf16" not in options:  # ONNX Runtime's CPU has no kernels for bfloat16
        ort.InferenceSession(output, providers=["CPUExecutionProvider"])
    assert no_cast_of_a_cast(converted)
    return converted, support.json.loads(result.stdout)


def no_cast_of_a_cast(model: onnx.ModelProto) -> bool:
    casts = {n.output[0] for n in model.graph.node if n.op_type == "Cast"}
    return not any(n.input[0] in casts for n in model.graph.node if n.op_type == "Cast")


def casts(model: onnx.ModelProto) -> int:
    return sum(n.op_type == "Cast" for n in model.graph.node)


def kept(model: onnx.ModelProto) -> Counter[str]:
    """Operator types that make float32."""
    types = rounded.types_of(model)
    return Counter(n.op_type for n in model.graph.node if n.op_type != "Cast" and FLOAT in [types.get(o) for o in n.output])


def tensors(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def samples(*shape: int, scale: float = 1, shift: float = 0, count: int = 4) -> list[Sample]:
    rng = np.random.default_rng(7)
    return [{"x": rng.normal(shift, scale, shape).astype(np.float32)} for _ in range(count)]


def worst(model: onnx.ModelProto, converted: onnx.ModelProto, data: list[Sample]) -> float:
    return min(rounded.worst_sqnr_db(model, converted, sample) for sample in data)


def test_a_whole_model(tmp_path: Path) -> None:
    model = graphs.small_cnn()
    converted, said = convert(model, graphs.cnn_samples(), tmp_path)
    assert said["floats"]["constants"] == 1
    assert said["nodes_quantized"] == 0
    assert {t.dtype for t in tensors(converted).values()} == {np.dtype(np.float16)}
    assert [i.type.tensor_type.elem_type for i in (*converted.graph.input, *converted.graph.output)] == [FLOAT, FLOAT]
    assert casts(converted) == said["floats"]["casts"] == 2
    assert worst(model, converted, graphs.cnn_samples()) > 60


def test_weights_are_the_nearest_float16(tmp_path: Path) -> None:
    b = graphs.Builder(3)
    model = b.model({"x": (FLOAT, [2, 300])}, [b.add("MatMul", "x", b.weight("w", 300, 400))])
    converted, _ = convert(model, samples(2, 300), tmp_path)
    assert np.array_equal(tensors(converted)["w"], tensors(model)["w"].astype(np.float16))


def test_types_of_inputs_and_outputs_may_change_too(tmp_path: Path) -> None:
    model = graphs.small_cnn()
    converted, _ = convert(model, graphs.cnn_samples(), tmp_path, "--float", "16", "--set", "no-keep-io-types")
    infos = [*converted.graph.input, *converted.graph.output]
    assert [i.type.tensor_type.elem_type for i in infos] == [FLOAT16, FLOAT16]
    assert [i.name for i in infos] == [i.name for i in (*model.graph.input, *model.graph.output)]
    assert casts(converted) == 0


def test_large_values_stay(tmp_path: Path) -> None:
    """7e4 does not fit float16, and 2e4 is too close to its end for other samples."""
    b = graphs.Builder(3)
    x = b.add("Mul", b.add("MatMul", "x", b.weight("w1", 64, 64)), b.constant("large", 2e4), name="grows")
    x = b.add("Relu", x, name="large_relu")
    x = b.add("Mul", x, b.constant("small", 1e-4), name="shrinks")
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", x, b.weight("w2", 64, 64))])
    data = samples(8, 64)
    converted, said = convert(model, data, tmp_path)
    assert set(kept(converted)) <= {"Mul", "Relu"}
    assert any("their values pass 16376" in note for note in said["notes"])
    assert casts(converted) == 4  # of the input and the result, into the island and out of it
    assert worst(model, converted, data) > 60


def test_sums_of_squares_stay(tmp_path: Path) -> None:
    """No value passes 300, but the squares do, and their sums much earlier."""
    b = graphs.Builder(3)
    x = b.add("MatMul", "x", b.weight("w1", 64, 256))
    centred = b.add("Sub", x, b.add("ReduceMean", x, axes=[-1], name="mean"))
    square = b.add("Mul", centred, centred, name="square")
    variance = b.add("ReduceMean", square, axes=[-1], name="variance")
    root = b.add("Sqrt", b.add("Add", variance, b.constant("epsilon", 1e-12)))
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", b.add("Div", centred, root), b.weight("w2", 256, 64))])
    data = samples(8, 64, scale=60)
    converted, _ = convert(model, data, tmp_path)
    stays = kept(converted)
    assert {"ReduceMean", "Mul", "Add"} <= set(stays)
    assert stays["MatMul"] <= 1  # the result is float32
    assert worst(model, converted, data) > 60


@pytest.mark.parametrize(("scale", "stays"), [(0.5, False), (60, True)])
def test_norms_whose_sums_pass_stay(scale: float, stays: bool, tmp_path: Path) -> None:
    b = graphs.Builder(3)
    x = b.add("MatMul", "x", b.weight("w1", 64, 256))
    x = b.add("LayerNormalization", x, b.weight("g", 256, shift=1), b.weight("s", 256), name="norm")
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", x, b.weight("w2", 256, 64))])
    data = samples(8, 64, scale=scale)
    converted, said = convert(model, data, tmp_path)
    assert (kept(converted)["LayerNormalization"] == 1) == stays
    assert any("sums" in note for note in said["notes"]) == stays
    assert worst(model, converted, data) > 60


def test_an_epsilon_does_not_vanish(tmp_path: Path) -> None:
    """Rows of zeros are divided by the epsilon alone: in float16 by zero."""
    b = graphs.Builder(3)
    x = b.add("Mul", "x", "x")
    x = b.add("Add", x, b.constant("epsilon", 1e-12), name="add")
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", b.add("Div", "x", x), b.weight("w", 64, 64))])
    data = samples(8, 64)
    data[0]["x"][:] = 0
    converted, said = convert(model, data, tmp_path)
    assert any("too small for the type" in note for note in said["notes"])
    assert np.isfinite(rounded.run(converted, data[0])[model.graph.output[0].name]).all()


@pytest.mark.parametrize("made", ["Log", "ReduceLogSum", "Reciprocal", "Sqrt", "Pow", "Softmax"])
@pytest.mark.parametrize("has_samples", [True, False], ids=["samples", "none"])
def test_no_number_becomes_zero_where_its_logarithm_or_inverse_is_taken(made: str, has_samples: bool, tmp_path: Path) -> None:
    b = graphs.Builder(3)
    x = b.add("MatMul", "x", b.weight("w", 64, 64))
    if made == "Softmax":
        x = b.add("Log", b.add("Transpose", b.add("Softmax", b.add("Mul", x, b.constant("factor", 4.0))), perm=[1, 0]))
    else:
        x = b.add("Transpose", b.add("Add", b.add("Mul", x, x), b.constant("epsilon", 1e-10)), perm=[1, 0])
        x = b.add(
            made, x, *([b.constant("power", -0.5)] if made == "Pow" else []), **({"axes": [0]} if made == "ReduceLogSum" else {})
        )
        x = b.add("Div", b.constant("small", 1e-3), x) if made == "Sqrt" else x
        x = b.add("Mul", x, b.constant("less", 1e-8)) if made == "Reciprocal" else x
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", b.add("MatMul", x, b.weight("v", 8, 64)), b.weight("u", 64, 64))])
    data = samples(8, 64)
    if made != "Softmax":
        data[0]["x"][:] = 0
    converted, _ = convert(model, data if has_samples else None, tmp_path)
    if has_samples or made in {"Log", "ReduceLogSum", "Softmax"}:
        assert np.isfinite(rounded.run(converted, data[0])[model.graph.output[0].name]).all()


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5])
def test_an_epsilon_of_a_norm_does_not_vanish(epsilon: float, tmp_path: Path) -> None:
    b = graphs.Builder(3)
    x = b.add("MatMul", "x", b.weight("w1", 64, 16))
    x = b.add("LayerNormalization", x, b.weight("g", 16, shift=1), name="norm", epsilon=epsilon)
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", x, b.weight("w2", 16, 64))])
    converted, _ = convert(model, samples(8, 64, scale=0.1), tmp_path)
    assert kept(converted)["LayerNormalization"] == (epsilon == 1e-12)


def test_a_large_weight_is_not_clipped(tmp_path: Path) -> None:
    b = graphs.Builder(3)
    weights = b.rng.normal(size=(64, 64)) * 0.01
    weights[3, 5], weights[4, 6] = 2e4, 6.9e4
    large = weights.copy()
    large[4, 6] = 0
    x = b.add("MatMul", b.add("Mul", "x", b.constant("small", 1e-3)), b.constant("fits", large), name="fits")
    y = b.add("MatMul", b.add("Mul", "x", b.constant("smaller", 1e-3)), b.constant("passes", weights), name="passes")
    model = b.model({"x": (FLOAT, [8, 64])}, [x, y])
    data = samples(8, 64)
    converted, _ = convert(model, data, tmp_path)
    assert tensors(converted)["fits"][3, 5] == 2e4
    assert tensors(converted)["passes"].dtype == np.float32
    assert worst(model, converted, data) > 55


def test_casts_of_the_model(tmp_path: Path) -> None:
    """Of integers and booleans to float become casts to float16; integers that float16 does not have stay float32."""
    b = graphs.Builder(3)
    table = b.add("Gather", b.weight("table", 100, 64), "ids")
    small = b.add("Cast", "ids", to=FLOAT, name="small")
    large = b.add("Cast", b.add("Mul", "ids", b.constant("factor", 1001, np.int64)), to=FLOAT, name="large")
    mask = b.add("Cast", b.add("Greater", small, b.constant("limit", 3)), to=FLOAT, name="mask")
    row = b.add("Unsqueeze", mask, b.constant("axes", [1], np.int64))
    x = b.add("MatMul", b.add("Mul", table, row), b.weight("w", 64, 64))
    scaled = b.add("Unsqueeze", b.add("Mul", large, b.constant("back", 1e-3)), b.constant("axis", [1], np.int64))
    model = b.model({"ids": (INT64, [8])}, [b.add("Add", x, scaled)])
    rng = np.random.default_rng(7)
    data = [{"ids": rng.integers(0, 100, 8)} for _ in range(4)]
    converted, _ = convert(model, data, tmp_path)
    to = {n.name: n.attribute[0].i for n in converted.graph.node if n.op_type == "Cast"}
    assert (to["mask"], to["large"]) == (FLOAT16, FLOAT)
    assert worst(model, converted, data) > 60


def test_sizes_are_computed_in_float32(tmp_path: Path) -> None:
    """Scales of Resize are float32 by its schema, and what they are computed from is as exact."""
    b = graphs.Builder(3)
    x = b.add("Conv", "x", b.weight("w1", 8, 3, 3, 3), pads=[1] * 4)
    factors = b.add("Div", b.constant("wanted", [1, 8, 40, 48]), b.add("Cast", b.add("Shape", x), to=FLOAT, name="sizes"))
    x = b.add("Resize", x, "", factors, mode="linear")
    model = b.model({"x": (FLOAT, [1, 3, "h", "w"])}, [b.add("Conv", x, b.weight("w2", 4, 8, 3, 3))])
    data = samples(1, 3, 20, 24)
    converted, _ = convert(model, data, tmp_path)
    assert kept(converted)["Div"] == 1
    assert kept(converted)["Resize"] == 0
    assert worst(model, converted, data) > 60


def test_a_constant_may_be_read_in_both_types(tmp_path: Path) -> None:
    b = graphs.Builder(3)
    weight = b.weight("w", 64, 64)
    x = b.add("Mul", b.add("MatMul", "x", weight, name="first"), b.constant("large", 3e4))
    x = b.add("MatMul", x, weight, name="second")
    x = b.add("Mul", x, b.constant("small", 1e-5))
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", x, b.weight("w3", 64, 64))])
    data = samples(8, 64)
    converted, _ = convert(model, data, tmp_path)
    stored = {n: a.dtype for n, a in tensors(converted).items()}
    assert stored["w"] == np.float32  # once: the file would grow otherwise
    assert "w_float16" not in stored
    assert [node.op_type for node in converted.graph.node if "w_float16" in node.output] == ["Cast"]
    assert worst(model, converted, data) > 60


def test_bodies_hand_values_on_in_float32(tmp_path: Path) -> None:
    b = graphs.Builder(3)
    hidden = b.add("Relu", b.add("MatMul", "x", b.weight("w1", 64, 64)), name="hidden")
    branches = {}
    for branch in ("then", "else"):
        node = helper.make_node("Mul" if branch == "then" else "Add", [hidden, "factor"], [branch])
        result = helper.make_tensor_value_info(branch, FLOAT, [8, 64])
        branches[f"{branch}_branch"] = helper.make_graph([node], branch, [], [result])
    b.constant("factor", 0.25)
    x = b.add("If", "flag", name="if", **branches)
    model = b.model({"x": (FLOAT, [8, 64]), "flag": (BOOL, [])}, [b.add("MatMul", x, b.weight("w2", 64, 64))])
    data = [s | {"flag": np.array(i % 2 == 0)} for i, s in enumerate(samples(8, 64))]
    converted, said = convert(model, data, tmp_path)
    assert any("into and out of their bodies" in note and "If 'if'" in note for note in said["notes"])
    assert tensors(converted)["w1"].dtype == np.float16
    session = ort.InferenceSession(tmp_path / "low.onnx", providers=["CPUExecutionProvider"])
    expected = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for sample in data:
        assert rounded.sqnr_db(expected.run(None, sample)[0], session.run(None, sample)[0]) > 60


def test_constant_nodes(tmp_path: Path) -> None:
    b = graphs.Builder(3)
    weight = b.add("Constant", value=numpy_helper.from_array(b.rng.normal(size=(64, 64)).astype(np.float32)))
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", "x", weight)])
    converted, said = convert(model, samples(8, 64), tmp_path)
    assert said["floats"]["constants"] == 1
    assert worst(model, converted, samples(8, 64)) > 60


def attention_mask_model() -> tuple[onnx.ModelProto, list[Sample]]:
    b = graphs.Builder(3)
    scores = b.add("MatMul", b.add("MatMul", "x", b.weight("q", 64, 64)), b.weight("k", 64, 64))
    masked = b.add("Where", b.add("Greater", "x", b.constant("zero", 0)), scores, b.constant("lowest", np.finfo(np.float32).min))
    x = b.add("MatMul", b.add("Softmax", masked, axis=-1), b.weight("v", 64, 64))
    return b.model({"x": (FLOAT, [8, 64])}, [x]), samples(8, 64)


def test_masks_of_the_lowest_float(tmp_path: Path) -> None:
    model, data = attention_mask_model()
    converted, _ = convert(model, data, tmp_path)
    assert set(kept(converted)) <= {"Where", "Softmax", "MatMul"}
    assert {t.dtype for n, t in tensors(converted).items() if n in "qkv"} == {np.dtype(np.float16)}
    assert worst(model, converted, data) > 55


def test_without_samples_sums_stay(tmp_path: Path) -> None:
    b = graphs.Builder(3)
    x = b.add("MatMul", "x", b.weight("w1", 64, 256))
    x = b.add("LayerNormalization", x, b.weight("g", 256, shift=1), b.weight("s", 256), name="norm")
    x = b.add("Pow", x, b.constant("two", 2))
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", x, b.weight("w2", 256, 64))])
    converted, said = convert(model, None, tmp_path)
    assert {"LayerNormalization", "Pow"} <= set(kept(converted))
    assert {t.dtype for n, t in tensors(converted).items() if n.startswith("w")} == {np.dtype(np.float16)}
    assert any("no samples" in note for note in said["notes"])


def test_what_is_named_is_converted_or_left(tmp_path: Path) -> None:
    model = graphs.small_cnn()
    converted, said = convert(model, graphs.cnn_samples(), tmp_path, "--float", "16", "--exclude-nodes", "conv_b")
    assert tensors(converted)["w2"].dtype == np.float32
    assert any("not selected: Conv 'conv_b'" in note for note in said["notes"])


def test_bfloat16(tmp_path: Path) -> None:
    """Range is no matter; convolutions have the type from opset 22 on only."""
    b = graphs.Builder(3)
    x = b.add("Relu", b.add("Mul", b.add("MatMul", "x", b.weight("w1", 64, 64)), b.constant("large", 7e4)))
    x = b.add("MatMul", b.add("Mul", x, b.constant("small", 1e-12)), b.weight("w2", 64, 64))
    model = b.model({"x": (FLOAT, [8, 64])}, [x])
    data = samples(8, 64)
    converted, said = convert(model, data, tmp_path, "--float", "bf16")
    assert said["floats"]["constants"] == 1
    assert {t.data_type for t in converted.graph.initializer} == {BFLOAT16}
    assert casts(converted) == 2
    assert worst(model, converted, data) > 40


def test_convolutions_of_old_opsets_get_the_opset_that_has_them_in_bfloat16(tmp_path: Path) -> None:
    converted, said = convert(graphs.small_cnn(), graphs.cnn_samples(), tmp_path, "--float", "bf16")
    assert kept(converted)["Conv"] == 0
    assert next(o.version for o in converted.opset_import if not o.domain) >= 22
    assert any("raised to 22" in note for note in said["notes"])


def test_pools_of_old_opsets_get_the_opset_that_arm_has_a_kernel_for(tmp_path: Path) -> None:
    """ONNX Runtime on ARM loads no float16 MaxPool of opsets before 12 (1.31.1); others stay in their opset."""
    for pool, opset in (("MaxPool", 13), ("AveragePool", 11)):
        b = graphs.Builder(5)
        x = b.add(pool, b.add("Conv", "x", b.weight("w", 8, 8, 3, 3)), kernel_shape=[2, 2])
        model = b.model({"x": (FLOAT, [1, 8, 12, 12])}, [x], opset=11)
        folder = tmp_path / pool
        folder.mkdir()
        converted, _ = convert(model, None, folder, "--float", "16")
        assert next(o.version for o in converted.opset_import if not o.domain) == opset


def test_same_bytes_for_any_budget_and_order(tmp_path: Path) -> None:
    model, data = graphs.small_cnn(), graphs.cnn_samples()
    for name, order, options in [("a", data, []), ("b", data[::-1], ["--set", "segments=3", "--workers", "2"])]:
        (tmp_path / name).mkdir()
        convert(model, order, tmp_path / name, "--float", "16", *options)
    assert (tmp_path / "a" / "low.onnx").read_bytes() == (tmp_path / "b" / "low.onnx").read_bytes()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--float", "16", "--preset", "plain", "--quant-format", "qoperator"], "operators on integers have scales of float32"),
        (["--float", "16", "--preset", "none", "--weight-type", "int4"], "--weight-type is for quantization"),
        (["--preset", "none"], "--preset none quantizes nothing"),
        (["--float", "8", "--preset", "none"], "--float: '8' is not one of its values"),
    ],
)
def test_refusals(options: list[str], text: str, model: Path, tmp_path: Path) -> None:
    result = support.detent("quantize", model, "-o", tmp_path / "q.onnx", *options)
    assert result.returncode == 2
    assert text in result.stderr


# Models that come with 16-bit floats.


def lowered(model: onnx.ModelProto, tmp_path: Path, *options: str) -> onnx.ModelProto:
    return convert(model, None, tmp_path, "--float", "16", "--set", "no-keep-io-types", *options)[0]


def raised(model: onnx.ModelProto, folder: Path, *options: str) -> onnx.ModelProto:
    source, output = folder / "low_input.onnx", folder / "high.onnx"
    onnx.save(model, source)
    result = support.detent("quantize", source, "-o", output, "--float", "32", "--preset", "none", *options)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    high = onnx.load(output)
    onnx.checker.check_model(high, full_check=True)
    return high


@pytest.mark.parametrize("keep", [True, False])
def test_float16_models_become_float32(keep: bool, tmp_path: Path) -> None:
    low = graphs.small_cnn(fp16=True)
    high = raised(low, tmp_path, *[] if keep else ["--set", "no-keep-io-types"])
    assert {t.dtype for t in tensors(high).values()} == {np.dtype(np.float32)}
    wanted = FLOAT16 if keep else FLOAT
    assert [i.type.tensor_type.elem_type for i in (*high.graph.input, *high.graph.output)] == [wanted] * 2
    assert [i.name for i in high.graph.input] == [i.name for i in low.graph.input]
    sample = {n: a.astype(np.float16) for n, a in graphs.cnn_samples()[0].items()}
    expected = ort.InferenceSession(low.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, sample)[0]
    feed = sample if keep else {n: a.astype(np.float32) for n, a in sample.items()}
    got = ort.InferenceSession(high.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)[0]
    assert rounded.sqnr_db(expected, got) > 55


def test_float16_models_are_quantized(tmp_path: Path) -> None:
    model, data = tmp_path / "model.onnx", [{n: a.astype(np.float16) for n, a in s.items()} for s in graphs.cnn_samples()]
    onnx.save(graphs.small_cnn(fp16=True), model)
    folder = support.save_samples(tmp_path / "data", data)
    said = support.quantize(model, tmp_path / "q.onnx", folder, "--float", "32")
    assert said["nodes_quantized"] > 3
    session = ort.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    expected = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, data[0])[0]
    got = session.run(None, data[0])[0]
    assert got.dtype == np.float16
    assert rounded.sqnr_db(expected, got) > 20


def mixed_model() -> onnx.ModelProto:
    """float16 and float32 nodes, casts between them, a Constant and a ConstantOfShape of float16, and a body of them."""
    half = numpy_helper.from_array(np.array([0.5], np.float16))
    b = graphs.Builder(3)
    x = b.add("MatMul", "x", b.constant("w1", b.rng.normal(size=(64, 64)), np.float16))
    x = b.add("Mul", x, b.add("Constant", value=half))
    x = b.add("Add", x, b.add("ConstantOfShape", b.constant("shape", [64], np.int64), value=half))
    body = {}
    for branch in ("then", "else"):
        nodes = [
            helper.make_node("Constant", [], [f"{branch}_half"], value=half),
            helper.make_node("Mul" if branch == "then" else "Add", [x, f"{branch}_half"], [f"{branch}_low"]),
            helper.make_node("Cast", [f"{branch}_low"], [f"{branch}_high"], to=FLOAT),
            helper.make_node("Mul", ["x32", f"{branch}_high"], [f"{branch}_product"]),
            helper.make_node("Cast", [f"{branch}_product"], [branch], to=FLOAT16),
        ]
        result = helper.make_tensor_value_info(branch, FLOAT16, [8, 64])
        body[f"{branch}_branch"] = helper.make_graph(nodes, branch, [], [result])
    b.nodes.append(helper.make_node("Cast", ["x"], ["x32"], to=FLOAT))
    x = b.add("If", "flag", name="if", **body)
    x = b.add("MatMul", b.add("Cast", x, to=FLOAT), b.weight("w2", 64, 64))
    return b.model({"x": (FLOAT16, [8, 64]), "flag": (BOOL, [])}, [x, b.add("Cast", x, to=FLOAT16)])


def test_mixed_models_become_float32(tmp_path: Path) -> None:
    low = mixed_model()
    high = raised(low, tmp_path)
    assert set(rounded.types_of(high).values()) <= {FLOAT, FLOAT16, BOOL, INT64}
    assert {t.dtype for t in tensors(high).values()} <= {np.dtype(np.float32), np.dtype(np.int64)}
    for flag in (True, False):
        sample = {"x": samples(8, 64)[0]["x"].astype(np.float16), "flag": np.array(flag)}
        expected = ort.InferenceSession(low.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, sample)
        got = ort.InferenceSession(high.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, sample)
        assert [a.dtype for a in got] == [a.dtype for a in expected]
        assert min(rounded.sqnr_db(e, g) for e, g in zip(expected, got, strict=True)) > 50


def test_mixed_models_become_float16(tmp_path: Path) -> None:
    data = [{"x": s["x"].astype(np.float16), "flag": np.array(True)} for s in samples(8, 64)]
    converted, said = convert(mixed_model(), data, tmp_path)
    assert said["floats"]["constants"] > 0.9
    assert casts(converted) <= 6


def test_there_and_back(tmp_path: Path) -> None:
    (tmp_path / "down").mkdir()
    model = graphs.small_cnn()
    low = lowered(model, tmp_path / "down")
    high = raised(low, tmp_path, "--set", "no-keep-io-types")
    assert casts(high) == 0
    assert [n.op_type for n in high.graph.node] == [n.op_type for n in low.graph.node if n.op_type != "Cast"]
    assert all(np.array_equal(a, tensors(high)[n]) for n, a in tensors(low).items())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("between", [[], ["Reshape"]], ids="-".join)
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("perm", [[1, 0, 2], [1, 2, 0, 3]], ids=str)
def test_a_product_of_what_another_first_axis_is_made_of(perm: list[int], side: int, between: list[str], tmp_path: Path) -> None:
    """ONNX Runtime dies while it loads some of these; behind a recurrent layer exporters write them."""
    last, nodes = "t", [helper.make_node("Transpose", ["x"], ["t"], "transpose", perm=perm)]
    for op_type in between:
        more = {"Reshape": ["same"]}.get(op_type, [])
        attributes = {"to": FLOAT} if op_type == "Cast" else {}
        nodes.append(helper.make_node(op_type, [last, *more], [op_type], op_type, **attributes))
        last = op_type
    nodes.append(helper.make_node("MatMul", [last, "w"] if side == 0 else ["w", last], ["y"], "product"))
    weight = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.zeros(len(perm), np.int64), "same")]
    shape = [4] * len(perm)
    infos = [helper.make_tensor_value_info(name, FLOAT, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    quantized = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--float", "16", "--preset", "none")
    assert quantized.returncode == 0, quantized.stderr
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    for runtime in [Path(), *support.RUNTIMES[-1:]]:
        results = support.run_in(runtime, tmp_path / "q.onnx", tmp_path / "results.npz", x=x)
        moved = x.transpose(perm)
        expected = moved @ weight if side == 0 else weight @ moved
        assert results is not None, f"{runtime.name}: does not load"
        np.testing.assert_allclose(results[0], expected, atol=0.05)
