"""What a run says in words is so: products left in float, sizes, few samples."""

import json

import graphs
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path

WIDTH = 4


def weight(name: str) -> onnx.TensorProto:
    values = np.random.default_rng(0).standard_normal((WIDTH, WIDTH))
    return numpy_helper.from_array(values.astype(np.float32), name)


def body(name: str) -> onnx.GraphProto:
    """Two products."""
    nodes = [helper.make_node("MatMul", ["a", "inner"], [f"{name}_b"]), helper.make_node("MatMul", [f"{name}_b", "inner"], [name])]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """One product in the graph and four in the bodies of an If."""
    nodes = [
        helper.make_node("MatMul", ["x", "outer"], ["a"], name="product"),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "low"], ["above"]),
        helper.make_node("If", ["above"], ["y"], name="choice", then_branch=body("t"), else_branch=body("e")),
    ]
    shape = [2, WIDTH]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    constants = [weight("outer"), weight("inner"), numpy_helper.from_array(np.float32(-9), "low")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    return support.save_samples(tmp_path / "data", [{"x": rng.standard_normal((2, WIDTH)).astype(np.float32)} for _ in range(8)])


def test_products_of_a_body_without_samples_are_left_in_float(model: Path, data: Path, tmp_path: Path) -> None:
    report = support.quantize(model, tmp_path / "out.onnx", data, *support.PLAIN)
    assert (report["nodes_quantized"], report["nodes_in_float"]) == (3, 2)
    assert any("choice" in note and "left in float" in note for note in report["notes"]), report["notes"]


def test_a_product_that_is_not_selected_is_left_in_float(tmp_path: Path) -> None:
    onnx.save(graphs.small_cnn(), tmp_path / "cnn.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples())
    report = support.quantize(tmp_path / "cnn.onnx", tmp_path / "out.onnx", data, "--exclude-nodes", "conv_a")
    assert report["nodes_in_float"] == 3  # also the Relu and the MaxPool behind it


def test_a_larger_file_is_called_larger_and_few_samples_few(model: Path, data: Path, tmp_path: Path) -> None:
    command = ["quantize", model, "-o", tmp_path / "out.onnx", "--calibration-data", data, *support.PLAIN]
    assert "x larger); 8 samples; " in support.detent(*command).stdout
    next(data.iterdir()).unlink()
    assert "; 7 samples (few); " in support.detent(*command).stdout


def test_compare_does_not_advise_what_was_done(tmp_path: Path) -> None:
    onnx.save(graphs.small_cnn(), tmp_path / "cnn.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples())
    advised = {}
    for method in ("nearest", "gptq"):
        support.quantize(tmp_path / "cnn.onnx", tmp_path / "out.onnx", data, "--finetune", method)
        report = support.detent("compare", tmp_path / "cnn.onnx", tmp_path / "out.onnx", "--calibration-data", data, "--json")
        advised[method] = any("--finetune" in layer.get("suggestion", "") for layer in json.loads(report.stdout)["layers"])
    assert advised == {"nearest": True, "gptq": False}


@pytest.mark.parametrize("command", ["inspect", "plan", "compare", "verify", "check"])
def test_names_stay_on_their_line(tmp_path: Path, command: str) -> None:
    """GitHub takes a line that begins with "::error::" for an order, and three backticks end a block of text."""
    evil = "y\n```\n::error::[link](http://evil.example)\n"
    rng = np.random.default_rng(1)
    w = numpy_helper.from_array(rng.normal(0, 0.2, (64, 64)).astype(np.float32), "w\n::error::")
    io = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64])] for name in ("x", evil)]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", w.name], [evil], evil)], "g", *io, [w])
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "d", [{"x": rng.normal(0, 1, (4, 64)).astype(np.float32)} for _ in range(2)])
    model, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    made = support.detent("quantize", model, "-o", output, "--calibration-data", data, "--no-bench", "--optimize-for", "size")
    assert made.returncode == 0, made.stderr
    given = {"inspect": [model], "plan": [model], "check": [output, "--target", "openvino"]}
    told = support.detent(command, *given.get(command, [model, output, "--calibration-data", data]))
    for text in (made.stdout, made.stderr, told.stdout, told.stderr):
        assert not any(line.startswith(("::", "```")) for line in text.splitlines()), text
