"""16-bit floats from Python, and through the other packages' function."""

import detent
import numpy as np
import onnx
import pytest
from detent.compat.float16 import convert_float_to_float16
from onnx import TensorProto, helper, numpy_helper


def product(factor=1.0):
    weights = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"], name="product"), helper.make_node("Mul", ["p", "f"], ["y"], name="mul")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 32])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.float32([factor]), "f")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def types(model):
    return {t.name: t.data_type for t in model.graph.initializer}


def samples():
    return [{"x": np.random.default_rng(i).normal(size=(4, 64)).astype(np.float32)} for i in range(3)]


def test_float_type_alone_quantizes_nothing():
    written = detent.quantize(product(), data=samples(), config=detent.Config(float_type="16"))
    assert types(onnx.load_from_string(written))["w"] == TensorProto.FLOAT16
    floats = written.result.floats
    assert (floats.nodes + floats.nodes_kept, written.result.nodes_quantized) == (2, 0)
    assert floats.constants > 0.99
    assert f"{floats.nodes} nodes in 16-bit floats, {floats.nodes_kept} in float32" in str(written.result)


def test_options_about_integers_are_refused():
    with pytest.raises(detent.UsageError, match="weight_type is for quantization"):
        detent.quantize(product(), config=detent.Config(float_type="16", weight_type="int4"))


def test_the_function_of_the_other_packages():
    low = convert_float_to_float16(product(), keep_io_types=True)
    assert types(low)["w"] == TensorProto.FLOAT16
    assert low.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    low = convert_float_to_float16(product(), op_block_list=["MatMul", "NonMaxSuppression"])
    assert types(low)["w"] == TensorProto.FLOAT
    assert low.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16


def test_samples_show_what_overflows():
    """Factors that fit, and make values that do not."""
    with pytest.raises(detent.BadInput, match="'mul'"):
        convert_float_to_float16(product(2e4))
    aware = convert_float_to_float16(product(2e4), data=samples())
    assert types(aware)["f"] == TensorProto.FLOAT


def test_arguments_without_a_meaning_are_refused():
    with pytest.raises(detent.UsageError, match="force_fp16_initializers"):
        convert_float_to_float16(product(), force_fp16_initializers=True)


def test_integers_among_float16():
    config = detent.Config(float_type="16", preset="plain")
    written = detent.quantize(product(), data=samples(), config=config)
    assert written.result.nodes_quantized == 2
    assert types(onnx.load_from_string(written))["w_scale"] == TensorProto.FLOAT16


@pytest.mark.parametrize("low", [False, True])
def test_integers_among_float16_from_samples_that_pass_once(low):
    """More of them than are kept for what looks at a few."""
    model = bytes(detent.quantize(product(), config={"float_type": "16"})) if low else product()
    config = {"preset": "balanced", "optimize_for": "size", **({} if low else {"float_type": "16"})}
    rng = np.random.default_rng(5)
    all_samples = [{"x": rng.normal(size=(4, 64)).astype(np.float32)} for _ in range(40)]
    written = detent.quantize(model, data=(sample for sample in all_samples), config=config)
    assert written.result.samples == 40
    assert written == detent.quantize(model, data=all_samples, config=config)
    assert written.result.floats is not None
    scales = {kind for name, kind in types(onnx.load_from_string(written)).items() if name.endswith("_scale")}
    assert TensorProto.FLOAT16 in scales


def test_compare_rounds_as_devices_do():
    low, told = detent.quantize(product(), config=detent.Config(float_type="16")), {}
    for rounds in (True, False):
        found = detent.compare(product(), low, data=samples(), round_floats=rounds)
        assert any("rounded to float16" in note for note in found.notes) == rounds
        told[rounds] = found.outputs[0].sqnr_db
    assert 60 < told[True] < told[False] - 1
