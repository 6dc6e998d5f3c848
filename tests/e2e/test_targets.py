"""Targets: what they write, what they refuse, and what `detent check` says of it; beside the runtimes themselves."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from graphs import FLOAT, INT64, Builder, cnn_samples, small_cnn
from onnx import numpy_helper
from support import ROOT, detent, load, outputs, quantize, save_samples, sqnr

WHEELS = {"openvino": "openvino", "qnn": "onnxruntime_qnn", "ort-cpu": "onnxruntime"}


@pytest.fixture(scope="module")
def cnn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cnn")
    onnx.save(small_cnn(batch=1), folder / "m.onnx")
    save_samples(folder / "data", cnn_samples())
    return folder


def quantized(folder, target, *options, preset="plain"):
    out = folder / f"{target.replace(':', '-')}.{preset}.onnx"
    quantize(folder / "m.onnx", out, folder / "data", "--target", target, "--preset", preset, *options)
    return out


def checked(model, target):
    result = detent("check", model, "--target", target, "--json")
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def params(model):
    """Scale and zero point of each QuantizeLinear and DequantizeLinear, by the value that it reads."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return {n.input[0]: tuple(constants[i] for i in n.input[1:3]) for n in model.graph.node if "tizeLinear" in n.op_type}


INTEGERS = ["openvino", "qnn", "qnn:a16", "tensorrt", "amd-npu:xint8", "amd-npu:a8w8", "amd-npu:a16w8", "xnnpack", "tflite-like"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("preset", ["plain", "balanced"])
def test_products_of_a_target_run_on_its_integers(cnn, target, preset):
    result = checked(quantized(cnn, target, preset=preset), target)
    products = [n for n in result["nodes"] if n["op_type"] in ("Conv", "ConvTranspose")]
    assert products and result["refused"] == 0 and result["problems"] == []
    wrong = [n for n in products if n["verdict"] != "accepted" and n["precision"] != "float32"]
    assert not wrong, wrong
    assert any(n["verdict"] == "accepted" and n["precision"].startswith("int") for n in products), products


def test_types_and_scales(cnn):
    xint8 = params(onnx.load(quantized(cnn, "amd-npu:xint8")))
    for scale, zero in xint8.values():
        if zero.dtype != np.int32:
            assert (np.frexp(scale)[0] == 0.5).all() and scale.size == 1
    tensorrt = params(onnx.load(quantized(cnn, "tensorrt")))
    assert {zero.dtype for _, zero in tensorrt.values()} <= {np.dtype(np.int8), np.dtype(np.int32)}
    assert not any(zero.any() for _, zero in tensorrt.values())
    wide = params(onnx.load(quantized(cnn, "qnn:a16")))
    assert np.dtype(np.uint16) in {zero.dtype for _, zero in wide.values()}


def test_scales_of_xint8_weights_are_those_of_quarks_search(cnn):
    """Of twice, once, half, … the power of two that is nearest to the range's, the one with the least squared error."""
    model = onnx.load(quantized(cnn, "amd-npu:xint8", "--set", f"prepared-output={cnn / 'prepared.onnx'}"))
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(cnn / "prepared.onnx").graph.initializer}
    found = {name: scale for name, (scale, zero) in params(model).items() if zero.dtype == np.int8}
    assert len(found) == 3
    for name, scale in found.items():
        w = weights[name.removesuffix("_quantized")].astype(float)
        nearest = np.exp2(np.rint(np.log2(np.abs(w).max() / 127)))
        scales = [nearest * 2.0 ** (1 - i) for i in range(5)]
        errors = [((w - np.clip(np.rint(w / s), -127, 127) * s) ** 2).sum() for s in scales]
        assert scale == scales[int(np.argmin(errors))], name


def test_means_of_xint8_have_the_scale_of_their_input(cnn):
    model = onnx.load(quantized(cnn, "amd-npu:xint8"))
    found, made = params(model), {output: node for node in model.graph.node for output in node.output}
    pools = [node for node in model.graph.node if node.op_type == "GlobalAveragePool"]
    assert pools
    for node in pools:
        before = made[made[node.input[0]].input[0]].input[0]
        assert found[before] == found[node.output[0]]


def test_average_pools_of_a8w8_have_a_scale_of_their_own(tmp_path):
    b = Builder()
    y = b.add("Relu", b.add("Conv", "x", b.weight("w", 4, 3, 1, 1)))
    y = b.add("AveragePool", y, kernel_shape=[4, 4], strides=[4, 4])
    onnx.save(b.model({"x": (FLOAT, [1, 3, 8, 8])}, [b.add("Conv", y, b.weight("v", 4, 4, 1, 1))]), tmp_path / "m.onnx")
    samples = [np.random.default_rng(i).normal(size=(1, 3, 8, 8)).astype(np.float32) for i in range(3)]
    save_samples(tmp_path / "data", [{"x": sample} for sample in samples])
    for target, is_own in (("amd-npu:a8w8", True), ("amd-npu:xint8", False), ("tflite-like", False)):
        model = onnx.load(quantized(tmp_path, target))
        found, made = params(model), {output: node for node in model.graph.node for output in node.output}
        pool = next(node for node in model.graph.node if node.op_type == "AveragePool")
        before = made[made[pool.input[0]].input[0]].input[0]
        assert (found[before] != found[pool.output[0]]) == is_own, target


def test_convolutions_have_all_attributes_for_the_npu(cnn):
    for node in onnx.load(quantized(cnn, "amd-npu:a8w8")).graph.node:
        if node.op_type == "Conv":
            assert {"kernel_shape", "strides", "dilations", "group", "pads"} <= {a.name for a in node.attribute}


def quantized_beside_float(model, folder, target):
    """The quantized model, and how far each output is from the float model's in dB; nothing of it is refused."""
    samples = [{"x": np.random.default_rng(i).uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)} for i in range(3)]
    onnx.save(model, folder / "m.onnx")
    save_samples(folder / "data", samples)
    path = quantized(folder, target)
    result = checked(path, target)
    assert (result["refused"], result["problems"]) == (0, [])
    both = [outputs(load(p), samples) for p in (folder / "m.onnx", path)]
    return path, [sqnr(*both, output) for output in range(len(model.graph.output))]


@pytest.mark.parametrize("target", ["tflite-like", "qnn:a16"])
@pytest.mark.parametrize(("size", "left_out"), [(1e-4, True), (0.01, True), (0.5, False)])
def test_a_tanh_of_less_than_a_fixed_step_is_left_out(tmp_path, target, size, left_out):
    """A quiet voice: steps of 1/128 would make it silent. What reads the Tanh beside the model's output reads the same."""
    b = Builder()
    y = b.add("Tanh", b.add("Conv", "x", b.weight("w", 4, 3, 1, 1, scale=size)))
    out = b.add("Conv", b.add("LeakyRelu", y, alpha=0.1), b.weight("v", 2, 4, 1, 1))
    path, apart = quantized_beside_float(b.model({"x": (FLOAT, [1, 3, 8, 8])}, [y, out]), tmp_path, target)
    assert any(n.op_type == "Tanh" for n in onnx.load(path).graph.node) != left_out
    assert min(apart) > 30


def test_scores_of_less_than_a_fixed_step_live(tmp_path):
    """Those of a detector before training: a Sigmoid whose grid would make all of them 0."""
    b = Builder()
    scores = b.add("Sigmoid", b.add("Conv", "x", b.weight("w", 4, 3, 1, 1), b.constant("b", np.full(4, -9, np.float32))))
    path, apart = quantized_beside_float(b.model({"x": (FLOAT, [1, 3, 8, 8])}, [scores]), tmp_path, "tflite-like")
    types = [n.op_type for n in onnx.load(path).graph.node]
    assert "Exp" in types and "Sigmoid" not in types
    assert min(apart) > 20


def gates(folder):
    """A convolution, then Sigmoid, Tanh and a Concat of both."""
    b = Builder()
    y = b.add("Conv", "x", b.weight("w", 4, 3, 1, 1))
    joined = b.add("Concat", b.add("Sigmoid", y), b.add("Tanh", y), b.add("Relu", y), axis=1)
    onnx.save(b.model({"x": (FLOAT, ["N", 3, 8, 8])}, [joined]), folder / "m.onnx")
    save_samples(folder / "data", [{"x": np.random.default_rng(i).normal(size=(1, 3, 8, 8)).astype(np.float32)} for i in range(3)])
    return folder


def test_fixed_grids_alignment_and_shapes(tmp_path):
    gates(tmp_path)
    shape = ["--shape", "x:1x3x8x8"]
    refused = detent(
        "quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", tmp_path / "data", "--target", "qnn"
    )
    assert refused.returncode == 2 and "input 'x'" in refused.stderr and "--shape x:" in refused.stderr
    model = onnx.load(quantized(tmp_path, "qnn:a16", *shape))
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 8, 8]
    found = params(model)
    assert found["sigmoid1.out"] == (np.float32(1 / 65536), 0)
    assert found["tanh1.out"] == (np.float32(1 / 32768), 32768)
    lite = params(onnx.load(quantized(tmp_path, "tflite-like", *shape)))
    assert lite["sigmoid1.out"] == (np.float32(1 / 256), -128)
    npu = params(onnx.load(quantized(tmp_path, "amd-npu:a8w8", *shape)))
    joined = [npu[name] for name in ("sigmoid1.out", "tanh1.out", "relu1.out") if name in npu]
    assert len(joined) == 3 and len({(float(scale), int(zero)) for scale, zero in joined}) == 1, joined


@pytest.mark.parametrize("target", ["qnn", "qnn:a16"])
def test_transformers_run_whole_on_the_htp(tmp_path, target):
    """Gelu instead of Erf, and biases of LayerNormalization in float."""
    b, width = Builder(3), 32
    x = b.add("Gather", b.weight("table", 50, width, scale=1), "ids")
    x = b.add("LayerNormalization", x, b.weight("ln1.w", width, shift=1), b.weight("ln1.b", width))
    y = b.add("MatMul", x, b.weight("up.w", width, 2 * width))
    gate = b.add("Add", b.add("Erf", b.add("Div", y, b.constant("root2", 2**0.5))), b.constant("one", 1))
    y = b.add("MatMul", b.add("Mul", b.add("Mul", y, gate), b.constant("half", 0.5)), b.weight("down.w", 2 * width, width))
    x = b.add("LayerNormalization", b.add("Add", x, y), b.weight("ln2.w", width, shift=1), b.weight("ln2.b", width))
    onnx.save(b.model({"ids": (INT64, [2, 7])}, [x]), tmp_path / "m.onnx")
    save_samples(tmp_path / "data", [{"ids": np.random.default_rng(i).integers(0, 50, (2, 7))} for i in range(3)])
    out = quantized(tmp_path, target)
    nodes = onnx.load(out).graph.node
    assert [n.op_type for n in nodes].count("Gelu") == 1 and not [n for n in nodes if n.op_type == "Erf"]
    biases = [n.input[2] for n in nodes if n.op_type == "LayerNormalization"]
    floats = {t.name for t in onnx.load(out).graph.initializer if t.data_type == FLOAT}
    assert len(biases) == 2 and set(biases) <= floats
    result = checked(out, target)
    assert result["falls_back"] == result["refused"] == 0 and result["partitions"] == 1, result


def test_batch_normalization_on_the_htp_is_a_convolution(tmp_path):
    b = Builder()
    parts = [b.weight("a", 3, shift=1), b.weight("s", 3), b.weight("m", 3), b.constant("v", [1, 2, 3])]
    y = b.add("Conv", b.add("Relu", b.add("BatchNormalization", "x", *parts)), b.weight("w", 4, 3, 1, 1))
    onnx.save(b.model({"x": (FLOAT, [1, 3, 8, 8])}, [y]), tmp_path / "m.onnx")
    samples = [np.random.default_rng(i).normal(size=(1, 3, 8, 8)).astype(np.float32) for i in range(3)]
    save_samples(tmp_path / "data", [{"x": sample} for sample in samples])
    out = quantized(tmp_path, "qnn")
    convolutions = [n for n in onnx.load(out).graph.node if n.op_type == "Conv"]
    assert len(convolutions) == 2 and next(a.i for a in convolutions[0].attribute if a.name == "group") == 3
    given = ["--calibration-data", tmp_path / "data", "--outputs-only", "--json"]
    compared = json.loads(detent("compare", tmp_path / "m.onnx", out, *given).stdout)
    assert all(output["sqnr_db"] > 25 for output in compared["outputs"])
    assert {n.op_type for n in onnx.load(quantized(tmp_path, "ort-cpu")).graph.node} >= {"BatchNormalization"}


def test_axes_called_by_a_question_mark_are_different_ones(cnn, tmp_path):
    model = onnx.load(cnn / "m.onnx")
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_param = "?"
    onnx.save(model, tmp_path / "m.onnx")
    save_samples(
        tmp_path / "data", [{"x": np.random.default_rng(i).normal(size=(1, 3, 16, 24)).astype(np.float32)} for i in range(2)]
    )
    out = onnx.load(quantized(tmp_path, "qnn", "--shape", "x:1x3x16x24"))
    assert [d.dim_value for d in out.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 16, 24]


def test_what_runtimes_leave_out_falls_back_to_no_cpu(tmp_path):
    """Shapes that are known, and nodes that compute nothing."""
    b = Builder()
    y = b.add("Relu", b.add("Conv", "x", b.weight("w", 4, 3, 1, 1)))
    flat = b.add("Reshape", y, b.add("Shape", y))
    onnx.save(b.model({"x": (FLOAT, [1, 3, 8, 8])}, [b.add("Identity", flat)]), tmp_path / "m.onnx")
    save_samples(
        tmp_path / "data", [{"x": np.random.default_rng(i).normal(size=(1, 3, 8, 8)).astype(np.float32)} for i in range(2)]
    )
    result = checked(quantized(tmp_path, "qnn"), "qnn")
    assert result["falls_back"] == 0 and result["partitions"] == 1, result
    assert checked(quantized(tmp_path, "ort-cpu"), "ort-cpu")["falls_back"] == 0


def test_plan_and_quantize_tell_what_falls_back(tmp_path):
    b = Builder()
    y = b.add("Softplus", b.add("Conv", "x", b.weight("w", 4, 3, 1, 1)))
    onnx.save(b.model({"x": (FLOAT, [1, 3, 8, 8])}, [b.add("Conv", y, b.weight("v", 4, 4, 1, 1))]), tmp_path / "m.onnx")
    samples = [np.random.default_rng(i).normal(size=(1, 3, 8, 8)).astype(np.float32) for i in range(2)]
    save_samples(tmp_path / "data", [{"x": sample} for sample in samples])
    told = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", tmp_path / "data", "--target", "qnn")
    planned = json.loads(detent("plan", tmp_path / "m.onnx", "--target", "qnn", "--json").stdout)
    seen = checked(tmp_path / "q.onnx", "qnn")
    for notes in (told["notes"], planned["notes"]):
        ours = [note for note in notes if note.startswith("qnn: ")]
        assert ours[0].startswith(f"qnn: {seen['accepted']} nodes accepted, {seen['falls_back']} fall back"), notes
        assert seen["falls_back"] == 0 or "Softplus" in ours[1]
    notes = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", tmp_path / "data")["notes"]
    assert not [note for note in notes if "accepted" in note]


def test_what_uint8_weights_cost_in_openvino(cnn):
    out = cnn / "u8.onnx"
    quantize(cnn / "m.onnx", out, cnn / "data", "--weight-type", "uint8")
    result = checked(out, "openvino")
    convolutions = [n for n in result["nodes"] if n["op_type"] == "Conv"]
    assert {(n["verdict"], n["precision"]) for n in convolutions} == {("falls back", "float32")}
    assert all("s8=" in n["suggestion"] for n in convolutions)
    text = detent("check", out, "--target", "openvino").stdout
    assert "0.2 % of" in text and "falls back" in text  # the last product, which is a Gemm
    given = ["--target", "openvino", "--weight-type", "uint8"]
    refused = detent("quantize", cnn / "m.onnx", "-o", out, "--calibration-data", cnn / "data", *given)
    assert refused.returncode == 2 and "--weight-type uint8 contradicts --target openvino" in refused.stderr


def test_pointwise_convolutions_with_strides_in_openvino(tmp_path):
    b = Builder()
    y = b.add("Relu", b.add("Conv", "x", b.weight("w", 8, 3, 3, 3), pads=[1] * 4))
    ends = [b.add("Conv", y, b.weight(f"w{i}", 4, 8, 1, 1), strides=[2, 2], name=f"strided{i}") for i in range(2)]
    onnx.save(b.model({"x": (FLOAT, [1, 3, 8, 8])}, ends), tmp_path / "m.onnx")
    samples = [np.random.default_rng(i).normal(size=(1, 3, 8, 8)).astype(np.float32) for i in range(3)]
    save_samples(tmp_path / "data", [{"x": sample} for sample in samples])
    other = checked(quantized(tmp_path, "ort-cpu"), "openvino")
    strided = [n for n in other["nodes"] if n["name"].startswith("strided")]
    assert {(n["verdict"], n["precision"]) for n in strided} == {("falls back", "float32")}
    assert "MaxPool" in strided[0]["suggestion"]
    out = quantized(tmp_path, "openvino")
    assert [n.op_type for n in onnx.load(out).graph.node].count("MaxPool") == 1
    nodes = [n for n in checked(out, "openvino")["nodes"] if n["op_type"] in ("Conv", "MaxPool")]
    assert len(nodes) == 4 and {(n["verdict"], n["precision"]) for n in nodes} == {("accepted", "int8")}
    given = ["--calibration-data", tmp_path / "data", "--outputs-only", "--json"]
    compared = json.loads(detent("compare", tmp_path / "m.onnx", out, *given).stdout)
    assert all(output["sqnr_db"] > 25 for output in compared["outputs"])


@pytest.mark.parametrize(("target", "wheel"), WHEELS.items())
def test_tables_against_the_runtime(target, wheel):
    if importlib.util.find_spec(wheel) is None:
        pytest.skip(f"{wheel} is not installed")
    every = {"ort-cpu": "20"}.get(target, "60")
    command = [sys.executable, ROOT / "scripts" / "sweep_targets.py", target, "--check", "--every", every]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=dict(os.environ))
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_check_of_a_float_model(cnn):
    result = checked(cnn / "m.onnx", "openvino")
    assert result["falls_back"] == result["refused"] == 0 and result["integer_macs"] == 0


DRAWN = {
    "RandomNormal": {"shape": [1, 3, 8, 8]},
    "RandomUniform": {"shape": [1, 3, 8, 8]},
    "RandomNormalLike": {},
    "RandomUniformLike": {},
    "Bernoulli": {},
}


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("asked", [["--target", "amd-npu:bf16"], ["--float", "bf16"]])
def test_what_draws_numbers_beside_convolutions_is_refused_in_bfloat16(tmp_path, kind, asked):
    """ONNX Runtime has no kernels of it in the opset that convolutions need."""
    b = Builder()
    drawn = b.add(kind, *(["x"] if "shape" not in DRAWN[kind] else []), **DRAWN[kind])
    y = b.add("Conv", b.add("Add", "x", drawn), b.weight("w", 4, 3, 1, 1))
    onnx.save(b.model({"x": (FLOAT, [1, 3, 8, 8])}, [y]), tmp_path / "m.onnx")
    refused = detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--preset", "none", *asked)
    assert refused.returncode == 3 and refused.stderr.count("\n") == 1, refused.stderr
    assert f"{' '.join(asked)} raises '" in refused.stderr and f"draws no numbers there for {kind} '" in refused.stderr
    assert "; make what it draws an input of the model" in refused.stderr
    assert not (tmp_path / "q.onnx").exists()


def test_prelu_stays_on_the_htp_beside_16_bits(tmp_path):
    """The HTP has it with 8 bits alone, and fallback to 16 raises the accuracy of what is around it."""
    rng = np.random.default_rng(1)
    b, read = Builder(), "x"
    for i in range(4):
        weight = rng.normal(0, 0.2, (8, 8, 3, 3))
        weight[3] *= 8
        if i > 0:
            weight[:, 3] /= 8
        read = b.add("Conv", read, b.constant(f"w{i}", weight), name=f"conv{i}", pads=[1, 1, 1, 1])
        if i < 3:
            read = b.add("PRelu", read, b.constant(f"s{i}", np.full((8, 1, 1), 0.25)), name=f"prelu{i}")
    onnx.save(b.model({"x": (FLOAT, [1, 8, 16, 16])}, [read]), tmp_path / "m.onnx")
    save_samples(tmp_path / "data", [{"x": rng.normal(0, 1, (1, 8, 16, 16)).astype(np.float32)} for _ in range(8)])
    for target in ("qnn:a16", "qnn"):
        out = quantized(tmp_path, target, "--set", "equalize=off", preset="balanced")
        told = checked(out, target)
        assert (told["falls_back"], told["refused"], told["partitions"]) == (0, 0, 1), told
    wide = onnx.load(out).graph.initializer
    assert any(t.data_type == onnx.TensorProto.UINT16 for t in wide)


OWN = """version: 1
name: my-npu
options:
  activation-type: uint8
  weight-type: int8
  weight-symmetric: true
  per-channel: false
  power-of-two-scale: true
operators: [Conv, Relu, MaxPool, Add]
static-shapes: true
"""


def test_a_target_of_ones_own(cnn, tmp_path):
    file = tmp_path / "my-npu.yaml"
    file.write_text(OWN)
    out = tmp_path / "q.onnx"

    def run(*options):
        given = ["--target", file, "--preset", "plain", *options]
        return detent("quantize", cnn / "m.onnx", "-o", out, "--calibration-data", cnn / "data", *given, "--json")

    told = json.loads(run().stdout)
    assert all(scale.size == 1 and np.log2(scale) % 1 == 0 for scale, _ in params(onnx.load(out)).values())
    seen = checked(out, file)
    assert seen["target"].startswith("my-npu@") and len(seen["target"]) == len("my-npu@") + 32
    assert any(note.startswith(f"{seen['target']}: ") for note in told["notes"]), told["notes"]
    kinds = {(n["op_type"], n["verdict"]) for n in seen["nodes"]}
    assert ("Conv", "accepted") in kinds and ("Gemm", "falls back") in kinds, kinds
    assert json.loads(detent("plan", cnn / "m.onnx", "--target", file, "--json").stdout)["nodes_quantized"] > 0
    refused = run("--weight-type", "uint8")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"contradicts --target {seen['target']}: my-npu has no other; give int8" in refused.stderr
    file.write_text(OWN.replace("per-channel: false", "per-channel: 2"))
    assert f"{file}:7: per-channel: '2' is not true or false" in run().stderr
    file.write_text(OWN + "# another text\n")
    assert checked(out, file)["target"] != seen["target"], "by which a run is not resumed either"
    file.write_text(OWN.replace("my-npu", "qnn-like"))
    assert "begins as the built-in target qnn" in run().stderr
    assert "cannot be read" in detent("check", out, "--target", tmp_path / "none.yaml").stderr
