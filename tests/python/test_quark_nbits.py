"""Scripts for AMD Quark's MATMUL_NBITS, with another import."""

import detent
import numpy as np
import onnx
import pytest
from detent.compat import matmul_nbits, quark
from onnx import TensorProto, helper, numpy_helper


def products(rows=128, columns=48):
    random = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "first"), helper.make_node("MatMul", ["a", "v"], ["y"], "second")]
    shapes = {"w": (rows, rows), "v": (rows, columns)}
    tensors = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", d]) for n, d in (("x", rows), ("y", columns)))
    return helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], tensors), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


class Reader:
    def __init__(self, count=4):
        random = np.random.default_rng(1)
        self.samples = iter([{"x": random.standard_normal((40, 128)).astype(np.float32)} for _ in range(count)])

    def get_next(self):
        return next(self.samples, None)


def attributes(node):
    return {a.name: a.i for a in node.attribute}


def quantized(reader=None, exclude=(), **extra_options):
    config = quark.QConfig.get_default_config("MATMUL_NBITS")
    config.exclude = list(exclude)
    config.extra_options["MatMulNBitsParams"].update(extra_options.pop("params", {}))
    config.extra_options.update(extra_options)
    return quark.ModelQuantizer(config).quantize_model(products(), None, reader)


def test_its_preset_has_the_bytes_of_onnxruntime():
    found = quantized()
    expected = matmul_nbits.MatMulNBitsQuantizer(products(), 4, 128, True, 1)
    expected.process()
    assert [attributes(n) for n in found.graph.node] == [attributes(n) for n in expected.model.model.graph.node]
    assert attributes(found.graph.node[0]) == {"K": 128, "N": 128, "bits": 4, "block_size": 128, "accuracy_level": 1}
    for ours, theirs in zip(found.graph.initializer, expected.model.model.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(ours), numpy_helper.to_array(theirs))


def test_algorithms_and_exclusions(tmp_path):
    assert [n.op_type for n in quantized(exclude=["first"]).graph.node] == ["MatMul", "MatMulNBits"]
    assert [n.op_type for n in quantized(NodesToQuantize=["first"]).graph.node] == ["MatMulNBits", "MatMul"]
    eight = quantized(params={"Bits": 8, "GroupSize": 32, "AccuracyLevel": 4}).graph.node[0]
    assert {"bits": 8, "block_size": 32, "accuracy_level": 4}.items() <= attributes(eight).items()
    hqq = quantized(params={"Algorithm": "HQQ"})
    assert "w_zero_points" in {t.name for t in hqq.graph.initializer}
    config = quark.QConfig(extra_options={"UseMatMulNBits": True, "MatMulNBitsParams": {"Algorithm": "GPTQ", "GroupSize": 32}})
    quark.ModelQuantizer(config).quantize_model(products(), str(tmp_path / "q.onnx"), Reader())
    assert [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node] == ["MatMulNBits", "MatMulNBits"]
    assert config.to_detent().weights_only.method == "gptq"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: quantized(params={"Algorithm": "AWQ"}), "DEFAULT, HQQ, GPTQ"),
        (lambda: quantized(params={"Rank": 8}), "MatMulNBitsParams has no option 'Rank'"),
        (lambda: quantized(params={"Algorithm": "GPTQ"}), "calibration_data_reader"),
        (lambda: quantized(Percentile=99.9), "extra_options.*Percentile.*means nothing"),
        (lambda: quantized(UseGPTQ=True), "Algorithm 'GPTQ'"),
        (lambda: quantized(params={"Bits": 3}), "bits"),
        (
            lambda: quark.QConfig(algo_config=[quark.GPTQConfig()], extra_options={"UseMatMulNBits": True}).to_detent(),
            "algo_config",
        ),
        (lambda: quark.QConfig().to_detent(), "global_config"),
        (lambda: quark.QConfig.get_default_config("MX9_INT8"), "MX9_INT8"),
    ],
)
def test_refused(wrong, says):
    with pytest.raises(detent.UsageError, match=says):
        wrong()
