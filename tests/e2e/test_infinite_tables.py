"""Masks of attention and unused rows of tables may hold infinite values or NaN: they stay in float. Weights may not."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper

ROWS, WIDTH, LENGTH = 64, 32, 8
FORMS = {
    "plain": ["--preset", "plain"],
    "size": ["--preset", "balanced"],
    "dynamic": ["--activations", "dynamic"],
    "blocks": ["--weights-only"],
}


def model(path: Path, bad: float, tied: bool) -> list[support.Sample]:
    rng = np.random.default_rng(1)
    table = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    table[ROWS - 4 :] = bad
    constants = {
        "table": table,
        "mask": np.triu(np.full((LENGTH, LENGTH), -np.inf, np.float32), 1),
        "q": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 6,
        "o": rng.standard_normal((WIDTH, ROWS)).astype(np.float32) / 6,
    }
    node = helper.make_node
    head = node("Gemm", ["mixed", "table"], ["y"], "y", transB=1) if tied else node("MatMul", ["mixed", "o"], ["y"], "y")
    nodes = [
        node("Gather", ["table", "ids"], ["e"], "rows"),
        node("MatMul", ["e", "q"], ["queries"], "queries"),
        node("Transpose", ["e"], ["keys"], "keys", perm=[1, 0]),
        node("MatMul", ["queries", "keys"], ["scores"], "scores"),
        node("Add", ["scores", "mask"], ["masked"], "masked"),
        node("Softmax", ["masked"], ["weights"], "weights"),
        node("MatMul", ["weights", "e"], ["mixed"], "mixed"),
        head,
    ]
    read = {name for made in nodes for name in made.input}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [LENGTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [LENGTH, ROWS])],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in read],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return [{"ids": rng.integers(0, ROWS - 4, LENGTH)} for _ in range(4)]


@pytest.mark.parametrize("bad", [-np.inf, np.nan], ids=["infinite", "nan"])
@pytest.mark.parametrize("form", FORMS)
def test_tables_and_masks_stay_in_float(form: str, bad: float, tmp_path: Path) -> None:
    samples = model(tmp_path / "m.onnx", bad, tied=False)
    data = support.save_samples(tmp_path / "data", samples)
    if form == "blocks":
        said = support.weights_only(tmp_path / "m.onnx", tmp_path / "q.onnx")
    else:
        said = support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *FORMS[form])
    assert any("infinite values" in note and "stays in float" in note for note in said["notes"]), said["notes"]
    reference = support.outputs(support.load(tmp_path / "m.onnx"), samples)
    found = support.outputs(support.check_model(tmp_path / "q.onnx"), samples)
    assert support.sqnr(reference, found) > (13 if form == "blocks" else 20)


@pytest.mark.parametrize("form", FORMS)
def test_weights_of_products_are_refused(form: str, tmp_path: Path) -> None:
    data = support.save_samples(tmp_path / "data", model(tmp_path / "m.onnx", np.nan, tied=True))
    options = FORMS[form] if form == "blocks" else [*FORMS[form], "--calibration-data", data]
    refused = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", *options)
    assert refused.returncode == 3 and "'table'" in refused.stderr and not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_masks_that_are_filled_while_the_model_runs_stay_in_float(dtype: type, tmp_path: Path) -> None:
    """What else reads the mask keeps it from being clamped."""
    rng = np.random.default_rng(2)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node
    weights = [numpy_helper.from_array((rng.standard_normal((WIDTH, WIDTH)) / 6).astype(dtype), name) for name in "qo"]
    weights += [numpy_helper.from_array(np.array(value, dtype), name) for name, value in {"low": -100, "zero": 0}.items()]
    nodes = [
        node("Shape", ["x"], ["length"], "length", end=1),
        node("Concat", ["length", "length"], ["square"], "square", axis=0),
        node("ConstantOfShape", ["square"], ["full"], "full", value=numpy_helper.from_array(np.array([-np.inf], dtype))),
        node("Trilu", ["full", "one"], ["mask"], "mask", upper=1),
        node("MatMul", ["x", "q"], ["queries"], "queries"),
        node("Transpose", ["x"], ["keys"], "keys", perm=[1, 0]),
        node("MatMul", ["queries", "keys"], ["scores"], "scores"),
        node("Add", ["scores", "mask"], ["masked"], "masked"),
        node("Softmax", ["masked"], ["shares"], "shares"),
        node("Less", ["mask", "low"], ["hidden"], "hidden"),
        node("Where", ["hidden", "zero", "shares"], ["seen"], "seen"),
        node("MatMul", ["seen", "x"], ["mixed"], "mixed"),
        node("MatMul", ["mixed", "o"], ["y"], "y"),
    ]
    values = [helper.make_tensor_value_info(name, kind, ["n", WIDTH]) for name in "xy"]
    constants = [*weights, numpy_helper.from_array(np.array(1), "one")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    samples = [{"x": rng.standard_normal((LENGTH, WIDTH)).astype(dtype)} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, "--preset", "plain")
    reference = support.outputs(support.load(tmp_path / "m.onnx"), samples)
    assert support.sqnr(reference, support.outputs(support.check_model(tmp_path / "q.onnx"), samples)) > 20
