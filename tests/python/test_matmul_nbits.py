"""Scripts for ONNX Runtime's MatMulNBitsQuantizer, with another import."""

import detent
import numpy as np
import onnx
import pytest
from detent.compat import matmul_nbits
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import _pybind_state as ort_native


def products(rows=64, columns=48):
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["t", "ids"], ["x"], "table"),
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("MatMul", ["a", "v"], ["y"], "second"),
    ]
    shapes = {"t": (32, rows), "w": (rows, columns), "v": (columns, columns)}
    tensors = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])
    return helper.make_model(
        helper.make_graph(nodes, "g", [ids], [y], tensors), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )


class Reader:
    def __init__(self, count=4):
        self.samples = iter([{"ids": np.arange(i, i + 20)} for i in range(count)])

    def get_next(self):
        return next(self.samples, None)


def made(*arguments, **options):
    quantizer = matmul_nbits.MatMulNBitsQuantizer(products(), *arguments, **options)
    quantizer.process()
    return quantizer.model.model


def types(model):
    return [node.op_type for node in model.graph.node]


def test_default_has_the_same_bytes():
    found = {t.name: numpy_helper.to_array(t) for t in made(4, 32, True, 4).graph.initializer}
    weight = {t.name: numpy_helper.to_array(t) for t in products().graph.initializer}["w"]
    integers, scales = np.zeros((48, 2, 16), np.uint8), np.zeros(96, np.float32)
    ort_native.quantize_matmul_4bits(integers, weight, scales, np.zeros(48, np.uint8), 32, 48, 64, True)
    np.testing.assert_array_equal(found["w_Q4"], integers)
    np.testing.assert_array_equal(found["w_scales"].ravel(), scales)


def test_arguments():
    # A block of 128 is longer than these products: they stay in float, and both packages' default is that long.
    assert types(made(block_size=16)) == ["Gather", "MatMulNBits", "MatMulNBits"]
    assert types(made(block_size=16, nodes_to_exclude=["first"])) == ["Gather", "MatMul", "MatMulNBits"]
    assert types(made(block_size=16, nodes_to_include=["first"])) == ["Gather", "MatMulNBits", "MatMul"]
    both = made(block_size=16, op_types_to_quantize=("MatMul", "Gather"))
    assert types(both) == ["GatherBlockQuantized", "MatMulNBits", "MatMulNBits"]
    qdq = made(block_size=16, quant_format=matmul_nbits.QuantFormat.QDQ)
    assert types(qdq) == ["Gather", "DequantizeLinear", "MatMul", "DequantizeLinear", "MatMul"]
    attributes = {a.name: a.i for a in made(8, 16, accuracy_level=4).graph.node[1].attribute}
    assert (attributes["bits"], attributes["accuracy_level"], attributes["block_size"]) == (8, 4, 16)


def test_algorithms(tmp_path):
    for config in (
        matmul_nbits.RTNWeightOnlyQuantConfig(customized_weight_config={"first": {"bits": 8}}),
        matmul_nbits.KQuantWeightOnlyQuantConfig(),
        matmul_nbits.HQQWeightOnlyQuantConfig(block_size=16),
        matmul_nbits.GPTQWeightOnlyQuantConfig(Reader(), block_size=16),
    ):
        quantizer = matmul_nbits.MatMulNBitsQuantizer(products(), block_size=16, algo_config=config)
        quantizer.process()
        quantizer.model.save_model_to_file(tmp_path / "q.onnx", True)
        assert types(onnx.load(tmp_path / "q.onnx")) == ["Gather", "MatMulNBits", "MatMulNBits"]
        methods = {w.method for w in quantizer.model.result.weights}
        assert methods == {"gptq" if config.algorithm == "GPTQ" else "search"}
        assert quantizer.model.result.weights[0].bits == (8 if config.algorithm == "RTN" else 4)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: matmul_nbits.RTNWeightOnlyQuantConfig(ratios={"first": 0.9}),
        lambda: matmul_nbits.GPTQWeightOnlyQuantConfig(),
        lambda: matmul_nbits.GPTQWeightOnlyQuantConfig(Reader(), percdamp=0.1),
        lambda: matmul_nbits.HQQWeightOnlyQuantConfig(axis=0),
        lambda: made(quant_axes=(("MatMul", 1),)),
        lambda: made(algo_config=matmul_nbits.RTNWeightOnlyQuantConfig(customized_weight_config={"first": {"group": 8}})),
    ],
)
def test_refused(wrong):
    with pytest.raises(detent.UsageError):
        wrong()
