"""Weights alone, from Python."""

import detent
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


def product(rows: int = 64, columns: int = 48) -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", rows])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")], "g", [x], [y], [numpy_helper.from_array(weight, "w")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_no_samples_are_needed() -> None:
    written = detent.quantize(product(), config=detent.Config(weights_only=True))
    assert [n.op_type for n in onnx.load_from_string(written).graph.node] == ["MatMulNBits"]
    (weight,) = written.result.weights
    assert (weight.name, weight.node, weight.bits, weight.block_size, weight.rows, weight.columns) == (
        *("w", "product", 4, 32, 64, 48),
    )
    assert 20 < weight.sqnr_db < 30 and weight.output_error is None
    assert "SQNR" in str(written.result)


def test_its_options() -> None:
    given = detent.WeightsOnly(bits=8, block_size="channel", form="qdq", node_bits=["^pro.*=4"])
    written = detent.quantize(product(), config=detent.Config(weights_only=given))
    assert [n.op_type for n in onnx.load_from_string(written).graph.node] == ["DequantizeLinear", "MatMul"]
    assert (written.result.weights[0].bits, written.result.weights[0].block_size) == (4, 0)
    same = detent.quantize(product(), config={"weights_only": {"bits": 4, "form": "qdq", "block_size": "channel"}})
    assert bytes(written) == bytes(same)


def test_what_does_not_go_together() -> None:
    with pytest.raises(detent.UsageError, match="MatMulNBits has scales for blocks"):
        detent.quantize(product(), config=detent.Config(weights_only=detent.WeightsOnly(block_size="channel")))


def test_bits_by_size() -> None:
    model = product(256, 64)
    float_size = len(model.SerializeToString())
    written = detent.quantize(model, config=detent.Config(weights_only=detent.WeightsOnly(max_size=float_size // 3)))
    plan = written.result.bits_plan
    assert plan.size == len(written) <= plan.max_size == float_size // 3
    assert [(w.name, w.bits) for w in plan.weights] == [("w", 8)]
    assert "w" in str(plan.weights)
    assert detent.quantize(model, config=detent.Config(weights_only=True)).result.bits_plan is None


def test_sparsity() -> None:
    samples = [{"x": np.random.default_rng(i).standard_normal((20, 64)).astype(np.float32)} for i in range(4)]
    given = detent.WeightsOnly(sparsity="2:4", method="gptq")
    (weight,) = detent.quantize(product(), data=samples, config=detent.Config(weights_only=given)).result.weights
    assert weight.output_error > weight.dense_error > 0
    with pytest.raises(detent.UsageError, match="needs samples"):
        detent.quantize(product(), config=detent.Config(weights_only=given))


def test_what_is_asked_for_most_stands_in_the_call() -> None:
    written = detent.quantize(product(), format="q8")
    assert written.result.weights[0].bits == 8
    assert bytes(written) == bytes(detent.quantize(product(), config=detent.Config(format="q8")))
    assert detent.plan(product(), format="q8").output_bytes > detent.plan(product(), format="q4").output_bytes
    with pytest.raises(detent.UsageError, match="format is given twice"):
        detent.quantize(product(), format="q8", config={"format": "q4"})
    with pytest.raises(detent.UsageError, match="that is q4 here"):
        detent.quantize(product(), format="int4")
