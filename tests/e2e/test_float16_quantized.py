"""Integers among 16-bit floats: scales of the same type, and models of 16-bit floats that keep it."""

import json
from collections import Counter

import graphs
import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import rounded
import support
from failures import BAD_INPUT, check
from onnx import TensorProto, helper, numpy_helper
from support import Path, Sample

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
FLOATS = {FLOAT, FLOAT16, BFLOAT16}


def samples(*shape: int, scale: float = 1, count: int = 4) -> list[Sample]:
    rng = np.random.default_rng(7)
    return [{"x": rng.normal(0, scale, shape).astype(np.float32)} for _ in range(count)]


def quantize(source: Path, output: Path, data: Path, *options: object) -> tuple[onnx.ModelProto, dict]:
    said = support.quantize(source, output, data, *options)
    made = onnx.load(output)
    onnx.checker.check_model(made, full_check=True)
    return made, said


def float_types(model: onnx.ModelProto) -> Counter[int]:
    """Of constants."""
    return Counter(t.data_type for t in model.graph.initializer if t.data_type in FLOATS)


def io_types(model: onnx.ModelProto) -> list[int]:
    return [i.type.tensor_type.elem_type for i in (*model.graph.input, *model.graph.output)]


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.node)


def tensors(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def worst(model: onnx.ModelProto, made: onnx.ModelProto, data: list[Sample]) -> float:
    return min(rounded.worst_sqnr_db(model, made, sample) for sample in data)


@pytest.mark.parametrize("preset", ["plain", "balanced"])
def test_scales_and_the_rest_are_float16(preset: str, tmp_path: Path) -> None:
    model, data = graphs.small_cnn(), graphs.cnn_samples()
    onnx.save(model, tmp_path / "m.onnx")
    folder = support.save_samples(tmp_path / "data", data)
    plain, _ = quantize(tmp_path / "m.onnx", tmp_path / "q32.onnx", folder, "--preset", preset)
    made, said = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", folder, "--preset", preset, "--float", "16")
    assert said["nodes_quantized"] == 8
    assert operators(made)["QuantizeLinear"] == operators(plain)["QuantizeLinear"]
    assert float_types(made)[FLOAT] <= 2, "scales of the values that are read and given as float32"
    assert float_types(made)[FLOAT16] >= 8
    assert io_types(made) == [FLOAT, FLOAT]
    assert said["floats"]["casts"] == operators(made)["Cast"] <= 2
    assert operators(made)["Max"] <= 2, "no barriers, which are for integers on CPUs, but where a bias would be lost"
    ort.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    assert worst(model, made, data) > worst(model, plain, data) - 2
    assert any("rounded as devices do, the worst output has" in note for note in said["notes"])


def test_integers_are_made_with_the_scales_that_are_written(tmp_path: Path) -> None:
    """Also in a channel whose scale is far below what float16 has digits for."""
    b = graphs.Builder(3)
    weights = b.rng.normal(size=(64, 32)).astype(np.float32)
    weights[:, 5] *= 1e-5
    product = b.add("MatMul", "x", b.constant("w", weights))
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("Tanh", product)])  # an output of its own would be parted
    onnx.save(model, tmp_path / "m.onnx")
    folder = support.save_samples(tmp_path / "data", samples(8, 64))
    made, _ = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", folder, "--float", "16", "--preset", "plain")
    stored = tensors(made)
    scale, integers = stored["w_scale"].astype(np.float64), stored["w_quantized"].astype(np.float64)
    assert stored["w_scale"].dtype == np.float16
    exact = np.abs(weights).max(0) / 127
    assert np.all(scale >= exact * (1 - 1e-6))
    assert np.all(scale <= np.maximum(exact * (1 + 2**-10), exact + 2**-24))
    assert np.all(np.abs(integers * scale - weights) <= scale / 2 + 1e-9)


@pytest.mark.parametrize("preset", ["plain", "balanced"])
def test_a_float16_model_keeps_its_type(preset: str, tmp_path: Path) -> None:
    model = graphs.small_cnn(fp16=True)
    data = [{n: a.astype(np.float16) for n, a in s.items()} for s in graphs.cnn_samples()]
    onnx.save(model, tmp_path / "m.onnx")
    folder = support.save_samples(tmp_path / "data", data)
    made, said = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", folder, "--preset", preset)
    high, _ = quantize(tmp_path / "m.onnx", tmp_path / "q32.onnx", folder, "--preset", preset, "--float", "32")
    assert set(float_types(made)) == {FLOAT16}
    assert io_types(made) == [FLOAT16, FLOAT16]
    assert operators(made)["Cast"] == said["floats"]["casts"] == 0
    assert said["floats"]["nodes_kept"] == 0
    assert any("--float 32 gives" in note for note in said["notes"])
    assert operators(made)["DequantizeLinear"] == operators(high)["DequantizeLinear"] - 3, "biases are floats"
    assert worst(model, made, data) > 38


def test_statistics_of_a_float16_model(tmp_path: Path) -> None:
    onnx.save(graphs.small_cnn(fp16=True), tmp_path / "m.onnx")
    folder = support.save_samples(
        tmp_path / "data", [{n: a.astype(np.float16) for n, a in s.items()} for s in graphs.cnn_samples()]
    )
    statistics = support.calibrate(tmp_path / "m.onnx", tmp_path / "s", folder)
    direct, _ = quantize(tmp_path / "m.onnx", tmp_path / "a.onnx", folder)
    saved, _ = quantize(tmp_path / "m.onnx", tmp_path / "b.onnx", folder, "--statistics", statistics)
    assert direct == saved
    plan = json.loads(support.detent("plan", tmp_path / "m.onnx", "--calibration-data", folder, "--json").stdout)
    assert plan["nodes_quantized"] == 8


@pytest.mark.parametrize("name", ["wide", "^soft[max", "^.*"])
def test_what_a_mixed_model_has_in_float32_stays(name: str, tmp_path: Path) -> None:
    b = graphs.Builder(3)
    x = b.add("MatMul", "x", b.constant("w1", b.rng.normal(size=(64, 64)), np.float16))
    high = b.add("Mul", b.add("Cast", x, to=FLOAT), b.constant("factor", 0.5), name=name)
    x = b.add("MatMul", b.add("Cast", high, to=FLOAT16), b.constant("w2", b.rng.normal(size=(64, 16)), np.float16))
    model = b.model({"x": (FLOAT16, [8, 64])}, [x])
    model.graph.output[0].type.tensor_type.elem_type = FLOAT16
    onnx.save(model, tmp_path / "m.onnx")
    data = [{"x": s["x"].astype(np.float16)} for s in samples(8, 64)]
    folder = support.save_samples(tmp_path / "data", data)
    made, said = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", folder, "--op-types", "MatMul", "--preset", "plain")
    assert rounded.types_of(made)[next(n for n in made.graph.node if n.name == name).output[0]] == FLOAT
    assert any(f"not selected: Mul '{name}'" in note for note in said["notes"])
    assert io_types(made) == [FLOAT16, FLOAT16]
    assert rounded.types_of(made)[made.graph.output[0].name] == FLOAT16
    assert worst(model, made, data) > 30


def test_bfloat16(tmp_path: Path) -> None:
    b = graphs.Builder(3)
    x = b.add("Relu", b.add("MatMul", "x", b.weight("w1", 64, 64)))
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", x, b.weight("w2", 64, 64))])
    onnx.save(model, tmp_path / "m.onnx")
    data = samples(8, 64)
    folder = support.save_samples(tmp_path / "data", data)
    quantize(tmp_path / "m.onnx", tmp_path / "low.onnx", folder, "--preset", "none", "--float", "bf16")
    made, _ = quantize(tmp_path / "low.onnx", tmp_path / "q.onnx", folder, "--preset", "plain")
    assert set(float_types(made)) <= {BFLOAT16, FLOAT}
    assert float_types(made)[BFLOAT16] >= 3
    assert worst(model, made, data) > 30


FROM_BFLOAT16 = {
    "float16": ["--float", "16", "--preset", "none"],
    "blocks in float16": ["--float", "16", "--weights-only"],
    "openvino": ["--float", "32", "--target", "openvino", "--preset", "balanced"],
    "qnn": ["--target", "qnn", "--shape", "x:1x64", "--preset", "balanced"],
    "xnnpack": ["--float", "32", "--target", "xnnpack", "--preset", "balanced"],
}


@pytest.mark.parametrize("form", FROM_BFLOAT16)
def test_what_is_made_of_bfloat16_is_told_beside_float32(form: str, tmp_path: Path) -> None:
    """The runtime has no kernels of the model that is given, and those of what is written."""
    random = np.random.default_rng(5)
    weights = [(random.normal(size=(64, 64)) / 8).astype(ml_dtypes.bfloat16) for _ in range(2)]
    b = graphs.Builder()
    for i, weight in enumerate(weights):
        b.constant(f"w{i}", weight, ml_dtypes.bfloat16)
    x = b.add("MatMul", b.add("Cast", "x", to=BFLOAT16), "w0")
    y = b.add("Cast", b.add("MatMul", b.add("Relu", x), "w1"), to=FLOAT)
    onnx.save(b.model({"x": (FLOAT, ["N", 64])}, [y]), tmp_path / "m.onnx")
    data = samples(1, 64)
    folder = support.save_samples(tmp_path / "data", data)
    made, said = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", folder, *FROM_BFLOAT16[form])
    first, second = (w.astype(np.float32) for w in weights)
    expected = [[np.maximum(sample["x"] @ first, 0) @ second] for sample in data]
    found = support.sqnr(expected, support.outputs(support.load(tmp_path / "q.onnx"), data))
    assert found > (15 if "blocks" in form else 30)
    assert min(90, said["accuracy"]["sqnr_db"]) == pytest.approx(min(90, found), abs=0.1)


def test_floats_of_8_bits_with_float16(tmp_path: Path) -> None:
    """What GPUs multiply: E4M3 between float16."""
    b = graphs.Builder(3)
    x = b.add("Relu", b.add("MatMul", "x", b.weight("w1", 64, 64)))
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", x, b.weight("w2", 64, 64))])
    onnx.save(model, tmp_path / "m.onnx")
    folder = support.save_samples(tmp_path / "data", samples(8, 64))
    types = ["--weight-type", "float8e4m3fn", "--activation-type", "float8e4m3fn"]
    made, said = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", folder, "--float", "16", "--preset", "plain", *types)
    assert Counter(t.data_type for t in made.graph.initializer)[TensorProto.FLOAT8E4M3FN] >= 4
    assert float_types(made)[FLOAT16] >= 4
    assert said["nodes_quantized"] == 2


def test_norms_whose_sums_pass_stay_in_float32(tmp_path: Path) -> None:
    b = graphs.Builder(3)
    x = b.add("MatMul", "x", b.weight("w1", 64, 256))
    x = b.add("LayerNormalization", x, b.weight("g", 256, shift=1), b.weight("s", 256), name="norm")
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", x, b.weight("w2", 256, 64))])
    onnx.save(model, tmp_path / "m.onnx")
    data = samples(8, 64, scale=60)
    folder = support.save_samples(tmp_path / "data", data)
    made, said = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", folder, "--float", "16", "--preset", "balanced")
    norm = next(n for n in made.graph.node if n.op_type == "LayerNormalization")
    assert rounded.types_of(made)[norm.output[0]] == FLOAT
    assert any("sums" in note for note in said["notes"])
    assert worst(model, made, data) > 30


def test_same_bytes_for_any_budget(tmp_path: Path) -> None:
    model, data = graphs.small_cnn(), graphs.cnn_samples()
    onnx.save(model, tmp_path / "m.onnx")
    folder = support.save_samples(tmp_path / "data", data)
    written = []
    for i, options in enumerate(([], ["--set", "segments=3", "--workers", "2"], ["--threads", "1", "--set", "memory-level=2"])):
        quantize(tmp_path / "m.onnx", tmp_path / f"{i}.onnx", folder, "--float", "16", "--preset", "balanced", *options)
        written.append((tmp_path / f"{i}.onnx").read_bytes())
    assert written[0] == written[1] == written[2]


def test_dynamic_takes_float16_models_as_float32(tmp_path: Path) -> None:
    b = graphs.Builder(3)
    weights = [b.constant(f"w{i}", b.rng.normal(size=(64, 64)), np.float16) for i in range(2)]
    x = b.add("MatMul", b.add("Relu", b.add("MatMul", "x", weights[0])), weights[1])
    model = b.model({"x": (FLOAT16, [8, 64])}, [x])
    model.graph.output[0].type.tensor_type.elem_type = FLOAT16
    onnx.save(model, tmp_path / "m.onnx")
    command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--activations", "dynamic"]
    refused = support.detent(*command)
    check(BAD_INPUT, "16-bit floats.*--float 32", refused.returncode, refused.stderr, refused.stdout)
    done = support.detent(*command, "--float", "32")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    made = onnx.load(tmp_path / "q.onnx")
    assert operators(made)["MatMulInteger"] == 2
    assert io_types(made) == [FLOAT16, FLOAT16]
    x = samples(8, 64)[0]["x"].astype(np.float16)
    expected, got = (support.load(tmp_path / f"{name}.onnx").run(None, {"x": x})[0] for name in "mq")
    assert rounded.sqnr_db(expected, got) > 30


def test_models_of_both_types_have_to_be_told(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=FLOAT16),
        helper.make_node("Cast", ["x"], ["brain"], to=BFLOAT16),
        helper.make_node("MatMul", ["half", "half"], ["half2"]),
        helper.make_node("MatMul", ["brain", "brain"], ["brain2"]),
        helper.make_node("Cast", ["half2"], ["a"], to=FLOAT),
        helper.make_node("Cast", ["brain2"], ["b"], to=FLOAT),
        helper.make_node("MatMul", ["a", "b"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(n, FLOAT, [8, 8]) for n in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:]), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, tmp_path / "m.onnx")
    folder = support.save_samples(tmp_path / "data", samples(8, 8))
    refused = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", folder)
    check(BAD_INPUT, "both float16 and bfloat16", refused.returncode, refused.stderr, refused.stdout)


@pytest.mark.parametrize("kind", ["stored", "one Cast"])
def test_models_whose_products_are_in_float32_are_no_16_bit_models(kind: str, tmp_path: Path) -> None:
    b = graphs.Builder(3)
    weights = [b.rng.normal(size=(64, 64)).astype(np.float32) / 8 for _ in range(2)]
    if kind == "stored":
        first, second = (b.add("Cast", b.constant(f"w{i}", w, np.float16), to=FLOAT) for i, w in enumerate(weights))
    else:
        first, second = (b.constant(f"w{i}", w) for i, w in enumerate(weights))
    x = b.add("Relu", b.add("MatMul", "x", first))
    if kind == "one Cast":
        x = b.add("Cast", b.add("Cast", x, to=FLOAT16), to=FLOAT)
    model = b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", x, second)])
    onnx.save(model, tmp_path / "m.onnx")
    data = samples(8, 64)
    folder = support.save_samples(tmp_path / "data", data)
    made, said = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", folder, "--preset", "balanced")
    assert not any("computes in 16-bit floats" in note for note in said["notes"])
    assert said["nodes_quantized"] >= 2
    assert FLOAT16 not in float_types(made)
    assert worst(model, made, data) > 30


def of_16_bits(scale: float, joined: bool) -> onnx.ModelProto:
    """Convolutions with biases, of small numbers or not, and a Concat of what they make."""
    b = graphs.Builder(3)

    def conv(x: str, name: str, *shape: int, scale: float = 1) -> str:
        weight = b.rng.normal(size=shape) * scale / np.sqrt(np.prod(shape[1:]))
        bias = b.rng.normal(size=shape[0]) * scale / 3
        constants = (b.constant(f"{name}.w", weight, np.float16), b.constant(f"{name}.b", bias, np.float16))
        return b.add("Relu", b.add("Conv", x, *constants, pads=[shape[2] // 2] * 4))

    first = conv("x", "first", 16, 3, 3, 3, scale=scale)
    last = conv(first, "second", 8, 16, 3, 3)
    if joined:
        last = conv(b.add("Concat", first, last, axis=1), "third", 8, 24, 1, 1)
    model = b.model({"x": (FLOAT16, [1, 3, 12, 12])}, [last])
    model.graph.output[0].type.tensor_type.elem_type = FLOAT16
    return model


@pytest.mark.sampled(6)
@pytest.mark.parametrize("options", ["plain", "balanced", "tensorrt", "qnn", "qnn:a16", "amd-npu:a8w8"])
@pytest.mark.parametrize(("scale", "joined"), [(1, False), (0.01, False), (1, True)])
def test_results_in_the_runtime(scale: float, joined: bool, options: str, tmp_path: Path) -> None:
    """With its default options, whose optimizer makes integers of biases and of a Concat."""
    model = of_16_bits(scale, joined)
    onnx.save(model, tmp_path / "m.onnx")
    data = [{"x": s["x"].astype(np.float16)} for s in samples(1, 3, 12, 12, count=6)]
    folder = support.save_samples(tmp_path / "data", data)
    chosen = ["--preset", options] if options in ("plain", "balanced") else ["--preset", "balanced", "--target", options]
    quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", folder, *chosen)
    before, after = (ort.InferenceSession(tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"]) for name in ("m", "q"))
    expected, got = (np.stack([session.run(None, sample)[0] for sample in data]) for session in (before, after))
    assert rounded.sqnr_db(expected, got) > 25
