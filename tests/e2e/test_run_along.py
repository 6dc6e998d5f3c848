"""What targets run along with its neighbour, and products of two activations: what is written, and what `check` says of it."""

import importlib.util
import itertools
import json
import os

import numpy as np
import onnx
import pytest
from graphs import FLOAT, Builder
from onnx import numpy_helper
from support import ROOT, detent, quantize, save_samples

OTHERS = {"kernel_shape": [2, 2], "strides": [1, 1]}
MAKERS = {
    "Add": {}, "Sub": {}, "Mul": {}, "Div": {}, "Max": {}, "Concat": {"axis": 1}, "MaxPool": OTHERS, "AveragePool": OTHERS,
    "GlobalAveragePool": {}, "Conv": {}, "Sigmoid": {}, "Tanh": {},
}  # fmt: skip
TARGETS = ["qnn", "qnn:a16", "tensorrt", "amd-npu:xint8", "amd-npu:a8w8", "amd-npu:a16w8", "tflite-like"]


def checked(model, target):
    done = detent("check", model, "--target", target, "--json")
    assert done.returncode == 0, done.stderr
    return {node["name"]: node for node in json.loads(done.stdout)["nodes"]}


def quantized(b, inputs, outputs, folder, target, *options, preset="plain"):
    onnx.save(b.model({name: (FLOAT, shape) for name, shape in inputs.items()}, outputs), folder / "m.onnx")
    random = np.random.default_rng(7)
    samples = [{n: random.uniform(-1, 2, s).astype(np.float32) for n, s in inputs.items()} for _ in range(3)]
    save_samples(folder / "data", samples)
    quantize(folder / "m.onnx", folder / "q.onnx", folder / "data", "--target", target, "--preset", preset, *options)
    return folder / "q.onnx"


def behind(maker, activation):
    """Two convolutions, the maker of both or of the first, the activation, and a convolution that reads that."""
    b = Builder(2)
    first, second = (b.add("Conv", "x", b.weight(name, 4, 3, 1, 1)) for name in ("w", "v"))
    if maker == "Conv":
        y = b.add("Conv", first, b.weight("u", 4, 4, 1, 1))
    elif maker == "Div":
        y = b.add("Div", first, b.add("Add", b.add("Sigmoid", second), b.constant("one", 1)))
    else:
        y = b.add(maker, *([first, second] if maker in ("Add", "Sub", "Mul", "Max", "Concat") else [first]), **MAKERS[maker])
    bounds = [b.constant("low", 0), b.constant("high", 0.75)] if activation == "Clip" else []
    y = b.add(activation, y, *bounds)
    return b, [b.add("Conv", y, b.weight("z", 4, 8 if maker == "Concat" else 4, 1, 1))]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("activation", ["Relu", "Clip", "LeakyRelu"])
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("target", TARGETS)
def test_an_activation_runs_on_integers_behind_whatever_makes_its_input(target, maker, activation, tmp_path):
    b, outputs = behind(maker, activation)
    nodes = checked(quantized(b, {"x": [1, 3, 8, 8]}, outputs, tmp_path, target), target)
    kinds = {maker, activation, "Conv"} - ({"Sigmoid", "Tanh", "Div"} if target == "tensorrt" else set())
    fallen = {n: v for n, v in nodes.items() if v["op_type"] in kinds and (v["verdict"] != "accepted" or v["on_cpu"])}
    assert not fallen, fallen
    floats = {n: v for n, v in nodes.items() if v["op_type"] in kinds and not v["precision"].startswith("int")}
    assert not floats, floats


def test_no_pair_parts_what_the_npu_runs_along(tmp_path):
    """As AMD Quark has it: behind a sum the Relu comes before the pair; behind a product of two values it has its own."""
    for maker, is_run_along in (("Add", True), ("MaxPool", True), ("Mul", False), ("Concat", False)):
        (tmp_path / maker).mkdir()
        b, outputs = behind(maker, "Relu")
        graph = onnx.load(quantized(b, {"x": [1, 3, 8, 8]}, outputs, tmp_path / maker, "amd-npu:a8w8")).graph
        made = {output: node.op_type for node in graph.node for output in node.output}
        relu = next(node for node in graph.node if node.op_type == "Relu")
        assert (made[relu.input[0]] == maker) == is_run_along, maker


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_recurrent_layer_that_reads_floats_leaves_the_integers(kind, tmp_path):
    gates, b = {"LSTM": 4, "GRU": 3}[kind], Builder(4)
    y = "x"
    for layer in range(2):
        weights = [b.weight(f"{name}{layer}", 1, gates * 8, 8) for name in ("w", "r")]
        y = b.add("Squeeze", b.add(kind, y, *weights, hidden_size=8), b.constant(f"axes{layer}", [1], np.int64))
    out = b.add("MatMul", y, b.weight("head", 8, 5))
    nodes = checked(quantized(b, {"x": [6, 1, 8]}, [out], tmp_path, "tflite-like"), "tflite-like")
    layers = [node for node in nodes.values() if node["op_type"] == kind]
    assert len(layers) == 2 and all(node["verdict"] == "falls back" for node in layers), layers


def test_an_einsum_in_float_is_left_to_the_cpu_and_not_refused(tmp_path):
    """Its weight of three axes makes no matrix product of it."""
    b = Builder(4)
    y = b.add("Einsum", b.add("Tanh", "x"), b.weight("w", 2, 8, 4), equation="btd,kde->kbte")
    out = b.add("MatMul", b.add("Reshape", y, b.constant("rows", [12, 4], np.int64)), b.weight("head", 4, 5))
    nodes = checked(quantized(b, {"x": [1, 6, 8]}, [out], tmp_path, "tflite-like"), "tflite-like")
    assert all(node["verdict"] != "refused" for node in nodes.values()), nodes
    assert all(node["on_cpu"] for node in nodes.values() if node["op_type"] == "Einsum" and node["verdict"] != "accepted"), nodes


def attention(folder, *options):
    """Heads, a Softmax, and a Relu before one of the operands."""
    b = Builder(5)
    heads = b.constant("heads", [1, 6, 2, 8], np.int64)

    def part(name, perm, after=None):
        y = b.add("MatMul", "x", b.weight(name, 16, 16))
        if after:
            y = b.add(after, y)
        return b.add("Transpose", b.add("Reshape", y, heads), perm=perm)

    scores = b.add("MatMul", part("wq", [0, 2, 1, 3]), part("wk", [0, 2, 3, 1]))
    mixed = b.add("MatMul", b.add("Softmax", scores, axis=-1), part("wv", [0, 2, 1, 3], "Relu"))
    return quantized(b, {"x": [1, 6, 16]}, [b.add("Tanh", mixed)], folder, "openvino", *options)


def operands(model):
    """Of products of two activations: type, zero point and largest stored value that the samples give, of each operand."""
    graph = onnx.load(model).graph
    made = {output: node for node in graph.node for output in node.output}
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type == "MatMul" and made[node.input[1]].input[0] not in constants:
            found.append([constants[made[value].input[2]] for value in node.input])
    return found


def test_products_of_two_activations_have_operands_that_openvino_multiplies_as_integers(tmp_path):
    model = attention(tmp_path)
    (query, key), (shares, value) = operands(model)
    assert [(z.dtype, int(z)) for z in (query, key, value)] == [(np.int8, 0)] * 3
    assert (shares.dtype, int(shares)) == (np.uint8, 0)
    assert [n.op_type for n in onnx.load(model).graph.node].count("Relu") == 1  # integers with a sign do not stop at 0
    nodes = checked(model, "openvino")
    products = [node for node in nodes.values() if node["op_type"] == "MatMul"]
    assert len(products) == 5 and all(node["precision"] == "int8" for node in products), products


def test_the_second_operand_leaves_room_where_pairs_of_products_saturate(tmp_path):
    scales = []
    for options in ([], ["--set", "weight-range=full"]):
        (folder := tmp_path / str(len(options))).mkdir()
        graph = onnx.load(attention(folder, *options)).graph
        constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        made = {output: node for node in graph.node for output in node.output}
        products = [n for n in graph.node if n.op_type == "MatMul" and made[n.input[1]].input[0] not in constants]
        scales.append([[float(constants[made[value].input[1]]) for value in node.input] for node in products])
    for narrow, full in zip(*scales, strict=True):
        assert narrow[0] == pytest.approx(full[0]) and narrow[1] == pytest.approx(full[1] * 127 / 64)


def in_a_row(folder, spelling, rows, preset, target="openvino"):
    """Three products with constants and few rows, of which some runtimes make one kernel."""
    b, value, widths = Builder(3), "x", (32, 48, 48, 8)
    for i, (into, out) in enumerate(itertools.pairwise(widths)):
        turned = spelling == "transposed"
        weight = b.weight(f"w{i}", *((out, into) if turned else (into, out)))
        bias = [b.weight(f"b{i}", out)] if spelling == "biases" else [b.constant(f"b{i}", np.zeros(out))] if turned else []
        value = b.add("Gemm", value, weight, *bias, transB=int(turned)) if bias else b.add("MatMul", value, weight)
        value = b.add("Relu", value) if i < 2 else value
    return quantized(b, {"x": [rows, 32]}, [value], folder, target, preset=preset)


FEW = [(spelling, preset) for spelling in ("plain", "transposed", "biases") for preset in ("plain", "balanced")]


@pytest.mark.parametrize(("spelling", "preset"), FEW)
def test_every_second_product_of_few_rows_has_three_axes_for_openvino(spelling, preset, tmp_path):
    graph = onnx.load(in_a_row(tmp_path, spelling, 2, preset)).graph
    axes = {
        v.name: len(v.type.tensor_type.shape.dim)
        for v in onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "q.onnx")).graph.value_info
    }
    products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm")]
    assert [axes[node.input[0]] for node in products] == [2, 3, 2]


def results(model, sample):
    """Of exact arithmetic in ONNX Runtime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, {"x": sample})[0]


def joined(folder, spelling, rows, target):
    (folder / target).mkdir()
    model = in_a_row(folder / target, spelling, rows, "plain", target)
    return model, [node for node in checked(model, "openvino").values() if node["op_type"] in ("MatMul", "Gemm")]


@pytest.mark.parametrize(("spelling", "verdict"), [("plain", "refused"), ("transposed", "refused"), ("biases", "falls back")])
def test_check_tells_of_products_of_few_rows_that_openvino_joins(spelling, verdict, tmp_path):
    """Files that were written for other targets: without a bias the results are wrong, with one a kernel of floats makes them."""
    _, products = joined(tmp_path, spelling, 2, "xnnpack")
    assert [node["verdict"] for node in products] == [verdict] * 3, products
    assert all("at most 8 rows" in node["rule"] and node["precision"] == "float32" for node in products)
    _, own = joined(tmp_path, spelling, 2, "openvino")
    assert [node["verdict"] for node in own] == ["accepted"] * 3, own


def test_check_accepts_products_of_many_rows_for_openvino(tmp_path):
    _, products = joined(tmp_path, "plain", 9, "xnnpack")
    assert [node["verdict"] for node in products] == ["accepted"] * 3, products


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="the wheel openvino is not installed")
@pytest.mark.parametrize("rows", [8, 9])
@pytest.mark.parametrize("spelling", ["plain", "transposed", "biases"])
def test_openvino_is_wrong_where_check_refuses(spelling, rows, tmp_path):
    import openvino

    model, products = joined(tmp_path, spelling, rows, "xnnpack")
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    sample = np.random.default_rng(7).uniform(-1, 2, (rows, 32)).astype(np.float32)
    expected = results(model, sample)
    error = np.abs(next(iter(compiled({"x": sample}).values())) - expected).max()
    is_right = error <= np.abs(expected).max() / 50
    assert is_right == (products[0]["verdict"] != "refused"), (error, products)


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="the wheel openvino is not installed")
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(("spelling", "preset"), FEW)
def test_openvino_multiplies_few_rows_as_integers_and_exactly(spelling, preset, rows, tmp_path, monkeypatch):
    """Left as they are, 2026.4.1 reads what it never wrote where there is no bias, and names a kernel of floats."""
    monkeypatch.syspath_prepend(ROOT / "bench")
    import in_openvino
    import openvino

    model = in_a_row(tmp_path, spelling, rows, preset)
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"})
    counts = in_openvino.kernels(model, compiled)
    assert counts["float"] == 0 and counts["integers"] >= 2, counts
    sample = np.random.default_rng(7).uniform(-1, 2, (rows, 32)).astype(np.float32)
    expected = results(model, sample)
    assert np.abs(next(iter(compiled({"x": sample}).values())) - expected).max() <= np.abs(expected).max() / 50


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="the wheel openvino is not installed")
@pytest.mark.parametrize("isa", ["DEFAULT", "AVX2"])
def test_openvino_multiplies_two_activations_as_integers_and_exactly(isa, tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "ONEDNN_MAX_CPU_ISA", isa)
    monkeypatch.syspath_prepend(ROOT / "bench")
    import in_openvino
    import openvino

    model = attention(tmp_path)
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    counts = in_openvino.kernels(model, compiled)
    assert counts["float"] == 0 and counts["integers"] == 5, counts
    sample = np.random.default_rng(7).uniform(-1, 2, (1, 6, 16)).astype(np.float32)
    expected = results(model, sample)
    assert np.abs(next(iter(compiled({"x": sample}).values())) - expected).max() <= 2 / 127
