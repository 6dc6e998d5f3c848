"""Models that the runtime is too old for, or that are not made for inference: refused in one line that names the cause."""

import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT
from onnx import TensorProto, helper, numpy_helper
from support import Path

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)


def model_of(nodes: list[onnx.NodeProto], opset: int = 17, ir_version: int = 8, **inputs: np.ndarray) -> onnx.ModelProto:
    """With a product behind what the nodes make of `x`, and an output `y`."""
    nodes = [*nodes, helper.make_node("MatMul", ["a", "w"], ["y"])]
    kinds = [helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape) for k, v in {"x": X, **inputs}.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "g", kinds, [output], [weight])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("my.domain", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def refusal(tmp_path: Path, model: onnx.ModelProto, **inputs: np.ndarray) -> str:
    onnx.save(model, tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "samples", [{"x": X, **inputs}])
    done = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", data)
    assert done.returncode == BAD_INPUT
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "q.onnx").exists()
    return done.stderr


def test_a_new_operator_is_named(tmp_path: Path) -> None:
    text = refusal(tmp_path, model_of([helper.make_node("Relu", ["x"], ["b"]), helper.make_node("NotYet", ["b"], ["a"])], 99))
    assert "opset 99 of ai.onnx" in text
    assert "knows opsets up to" in text
    assert "NotYet" in text


def test_a_new_opset_alone(tmp_path: Path) -> None:
    text = refusal(tmp_path, model_of([helper.make_node("Relu", ["x"], ["a"])], 99))
    assert "opset 99 of ai.onnx" in text
    assert "without operator" not in text


def test_a_new_version_of_the_file_format(tmp_path: Path) -> None:
    text = refusal(tmp_path, model_of([helper.make_node("Relu", ["x"], ["a"])], ir_version=99))
    assert "IR version 99" in text
    assert "knows versions up to" in text


def test_an_operator_of_another_domain_is_named(tmp_path: Path) -> None:
    text = refusal(tmp_path, model_of([helper.make_node("Custom", ["x"], ["a"], domain="my.domain")]))
    assert "has no operator my.domain:Custom" in text


def test_an_operator_without_a_kernel_is_named(tmp_path: Path) -> None:
    cast = helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT16)
    back = helper.make_node("Cast", ["m"], ["a"], to=TensorProto.FLOAT)
    text = refusal(tmp_path, model_of([cast, helper.make_node("Max", ["i", "i"], ["m"], "largest"), back]))
    assert "has no kernel of Max" in text
    assert "'largest'" in text


@pytest.mark.parametrize("state", ["mean", "var"])
def test_training_that_would_write_into_the_samples(tmp_path: Path, state: str) -> None:
    values = {name: np.full(3, 0.5, np.float32) for name in ("s", "b", "mean", "var")}
    nodes = [helper.make_node("BatchNormalization", ["x", "s", "b", "mean", "var"], ["a", "m", "v"], training_mode=1)]
    nodes.append(helper.make_node("Add", ["m", "v"], ["unread"]))
    model = model_of(nodes, **{state: values[state]})
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in values.items() if k != state)
    text = refusal(tmp_path, model, **{state: values[state]})
    assert "training mode" in text
    assert "export the model for inference" in text
