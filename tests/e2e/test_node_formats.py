"""Several formats in one model: each node has the one that was said of it, and no other."""

import json
import subprocess

import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path

#: The operator that a product of a format becomes.
OPERATORS = {"q8": "MatMulNBits", "q4": "MatMulNBits", "q2": "MatMulNBits", "int8-dynamic": "MatMulInteger"}
PRODUCTS = ("first", "second", "third")
FORMATS = ("fp32", "int8", "a16w8", "int8-dynamic", "q8", "q4", "q2")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution and three products in a row, a Gemm among them, and samples."""
    folder = tmp_path_factory.mktemp("net")
    random = np.random.default_rng(1)
    weights = {"filter": (8, 3, 3, 3), "w1": (8 * 64, 64), "bias": (64,), "w2": (64, 64), "w3": (64, 16)}
    constants = [
        numpy_helper.from_array((random.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32), name)
        for name, shape in weights.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "filter"], ["a"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Flatten", ["b"], ["c"], "flat"),
        helper.make_node("Gemm", ["c", "w1", "bias"], ["d"], "first"),
        helper.make_node("Relu", ["d"], ["e"], "relu_2"),
        helper.make_node("MatMul", ["e", "w2"], ["f"], "second"),
        helper.make_node("Tanh", ["f"], ["g"], "tanh"),
        helper.make_node("MatMul", ["g", "w3"], ["y"], "third"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16])
    graph = helper.make_graph(nodes, "net", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx")
    np.save(folder / "x.npy", random.standard_normal((24, 3, 8, 8)).astype(np.float32))
    return folder


def mixed(net: Path, output: Path, formats: str, *options: object) -> subprocess.CompletedProcess[str]:
    command = ["quantize", net / "net.onnx", "-o", output, "--node-formats", formats, "--json"]
    return support.detent(*command, "--calibration-data", net / "x.npy", "--batch-size", 1, *options)


def form_of(model: onnx.ModelProto, name: str) -> str:
    """What became of a product: its operator, or what its inputs are read through."""
    made = [node for node in model.graph.node if node.name == name]
    if len(made) == 1 and made[0].op_type in ("MatMulNBits", "MatMulInteger"):
        return made[0].op_type
    makers = {output: node for node in model.graph.node for output in node.output}
    readers = [node for node in model.graph.node if node.name == name]
    maker = makers.get(readers[0].input[0])
    if maker is None or maker.op_type != "DequantizeLinear":
        return "float"
    zero = next(tensor for tensor in model.graph.initializer if tensor.name == maker.input[2])
    return f"{numpy_helper.to_array(zero).dtype}"


def expected_form(name: str) -> str:
    return {"fp32": "float", "int8": "uint8", "a16w8": "uint16"}.get(name) or OPERATORS[name]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("second", FORMATS)
def test_each_product_has_its_format(net: Path, tmp_path: Path, first: str, second: str) -> None:
    third = FORMATS[(FORMATS.index(first) + FORMATS.index(second)) % len(FORMATS)]
    said = dict(zip(PRODUCTS, (first, second, third), strict=True))
    if set(said.values()) == {"fp32"}:
        said["conv"] = "int8"
    result = mixed(net, tmp_path / "out.onnx", ",".join(f"{node}={form}" for node, form in said.items()), "--no-bench")
    assert result.returncode == 0, result.stderr
    model = onnx.load(tmp_path / "out.onnx")
    assert {node: form_of(model, node) for node in PRODUCTS} == {node: expected_form(said[node]) for node in PRODUCTS}
    bits = {w["node"]: w["bits"] for w in json.loads(result.stdout).get("weights", [])}
    assert bits == {node: int(form[1:]) for node, form in said.items() if form.startswith("q")}


def test_same_words_same_bytes_by_file_and_order(net: Path, tmp_path: Path) -> None:
    formats = ["^.*=int8", "first=q4", "second=int8-dynamic"]
    assert mixed(net, tmp_path / "a.onnx", ",".join(formats)).returncode == 0
    (tmp_path / "formats.yaml").write_text("node-formats:\n" + "".join(f"  - {entry}\n" for entry in formats))
    command = [support.DETENT, "quantize", net / "net.onnx", "-o", tmp_path / "b.onnx", "--threads", 1]
    data = ["--calibration-data", net / "x.npy", "--batch-size", 1, "--config", tmp_path / "formats.yaml"]
    subprocess.run([*map(str, [*command, *data])], check=True, capture_output=True)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_tells_of_the_last_model_beside_the_float_one(net: Path, tmp_path: Path) -> None:
    told = json.loads(mixed(net, tmp_path / "out.onnx", "conv=int8,first=q8,second=int8-dynamic").stdout)
    assert told["nodes_quantized"] == 3
    assert told["nodes_in_float"] == 1
    samples = [{"x": row[None]} for row in np.load(net / "x.npy")[:8]]
    runs = [support.outputs(support.load(path), samples) for path in (net / "net.onnx", tmp_path / "out.onnx")]
    assert told["accuracy"]["sqnr_db"] == pytest.approx(support.sqnr(*runs), abs=0.5)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("formats", "said"),
    [
        ("conv=q4", "Conv 'conv' cannot be q4; it can be fp32, int8, a16w8"),
        ("^co.*=int8-dynamic", "no node that '^co.*' matches can be int8-dynamic"),
        ("nothing=int8", "no node of"),
        ("tanh=int8", "it has no format of its own"),
        ("first=int7", "did you mean int8"),
        ("first", "is not a node with its format"),
        ("first=fp32", "leaves all nodes in float"),
    ],
)
def test_what_cannot_be_is_refused(net: Path, tmp_path: Path, formats: str, said: str) -> None:
    result = mixed(net, tmp_path / "out.onnx", formats)
    assert (result.returncode, said in result.stderr) == (2, True), result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [["--format", "q4"], ["--weights-only"], ["--finetune", "gptq"], ["--nodes", "first"]])
def test_what_says_the_format_of_all_does_not_go_with_it(net: Path, tmp_path: Path, option: list[str]) -> None:
    result = mixed(net, tmp_path / "out.onnx", "first=q4", *option)
    assert (result.returncode, "--node-formats" in result.stderr) == (2, True), result.stderr


def test_a_recurrent_layer_has_weights_of_8_bits_beside_a_product_on_integers(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    shapes = {"w": (1, 256, 64), "r": (1, 256, 64), "m": (64, 64)}
    constants = [numpy_helper.from_array((0.2 * random.standard_normal(d)).astype(np.float32), n) for n, d in shapes.items()]
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["s"], "layer", hidden_size=64),
        helper.make_node("Squeeze", ["s"], ["q"], "squeeze"),
        helper.make_node("MatMul", ["q", "m"], ["y"], "head"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 2, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 2, 64])
    graph = helper.make_graph(nodes, "net", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "net.onnx")
    np.savez(tmp_path / "0.npz", x=random.standard_normal((8, 2, 64)).astype(np.float32))
    command = ["quantize", tmp_path / "net.onnx", "-o", tmp_path / "out.onnx", "--node-formats", "layer=w8,head=int8"]
    done = support.detent(*command, "--calibration-data", tmp_path / "0.npz", "--no-bench", "--json")
    assert done.returncode == 0, done.stderr
    made = onnx.load(tmp_path / "out.onnx")
    weights = {t.name for t in made.graph.initializer if t.data_type == TensorProto.INT8 and len(t.dims) > 1}
    assert len(weights) == 3
    assert (tmp_path / "out.onnx").stat().st_size < (tmp_path / "net.onnx").stat().st_size / 3
    assert not any("stays in float" in note for note in json.loads(done.stdout)["notes"])
