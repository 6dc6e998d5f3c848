"""Mixtures of experts in blocks: MoE becomes QMoE. Expected values: MoE of ONNX Runtime with the weights that numpy makes of the
stored integers."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(5)
EXPERTS, HIDDEN, INNER = 4, 96, 64


def model_of(path: Path, weights: dict[str, np.ndarray], **attributes: object) -> Path:
    """y = MoE(x) with scores of a product."""
    inputs = ["x", "p", "fc1", "b1" if "b1" in weights else "", "fc2", "b2" if "b2" in weights else ""]
    router = helper.make_node("MatMul", ["x", "router"], ["p"], "router")
    node = helper.make_node("MoE", inputs, ["y"], "moe", domain="com.microsoft", k=2, **attributes)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", HIDDEN]) for n in "xy"]
    tensors = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()]
    graph = helper.make_graph([router, node], "g", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def weights_of(swiglu: bool, bias: bool) -> dict[str, np.ndarray]:
    gates = 2 if swiglu else 1
    made = {"fc1": RNG.normal(size=(EXPERTS, gates * INNER, HIDDEN)) / 8, "fc2": RNG.normal(size=(EXPERTS, HIDDEN, INNER)) / 8}
    if bias:
        made |= {"b1": RNG.normal(size=(EXPERTS, gates * INNER)), "b2": RNG.normal(size=(EXPERTS, HIDDEN))}
    return made | {"router": RNG.normal(size=(HIDDEN, EXPERTS))}


def stored(node: onnx.NodeProto, tensors: dict[str, np.ndarray], which: int, bits: int, block: int) -> np.ndarray:
    """What QMoE's inputs say, by the text of its schema."""
    integers, scales = (tensors[node.input[2 + 3 * which + i]] for i in (0, 1))
    values = np.stack([(integers >> (bits * i)) & (2**bits - 1) for i in range(8 // bits)], -1).reshape(*integers.shape[:2], -1)
    zero = np.full(scales.shape, 2 ** (bits - 1))
    if len(node.input) > 11 + which and node.input[11 + which]:
        packed = tensors[node.input[11 + which]]
        zero = np.stack([(packed >> (bits * i)) & (2**bits - 1) for i in range(8 // bits)], -1)
        zero = zero.reshape(*packed.shape[:2], -1)[..., : scales.shape[2]].astype(int)
    return (values.astype(int) - zero.repeat(block, -1)) * scales.repeat(block, -1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", ["relu", "silu", "swiglu"])
def test_moe_becomes_qmoe(tmp_path: Path, kind: str, symmetric: bool, bits: int) -> None:
    block = 32 if symmetric else 16
    weights = weights_of(kind == "swiglu", bias=kind != "silu")
    attributes = {"activation_type": kind, "normalize_routing_weights": 1} | ({"swiglu_fusion": 1} if kind == "swiglu" else {})
    model = model_of(tmp_path / "m.onnx", weights, **attributes)
    sign = "weight-symmetric" if symmetric else "weight-asymmetric"
    result = support.weights_only(
        model, tmp_path / "q.onnx", "--block-size", block, "--bits", bits, "--set", sign, "--exclude-nodes", "router"
    )
    assert {w["name"] for w in result["weights"]} == {"fc1", "fc2"}
    graph = onnx.load(tmp_path / "q.onnx").graph
    (node,) = [n for n in graph.node if n.op_type == "QMoE"]
    assert not any(n.op_type in ("MoE", "DequantizeLinear") for n in graph.node)
    assert {a.name for a in node.attribute} == {"k", "expert_weight_bits", "block_size", *attributes}
    tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    found = {name: stored(node, tensors, i, bits, block) for i, name in enumerate(("fc1", "fc2"))}
    assert all(support.sqnr([[weights[n]]], [[found[n]]]) > (19 if bits == 4 else 42) for n in found)
    expected = model_of(tmp_path / "same.onnx", weights | found, **attributes)
    sample = [{"x": RNG.normal(size=(7, HIDDEN)).astype(np.float32)}]
    outputs = [support.outputs(support.load(path), sample) for path in (expected, tmp_path / "q.onnx")]
    assert support.sqnr(*outputs) > (100 if bits == 4 else 35)  # 8 bits: the runtime rounds activations


def test_what_does_not_fit_stays(tmp_path: Path) -> None:
    weights = weights_of(False, False)
    model = model_of(tmp_path / "m.onnx", weights, normalize_routing_weights=1)
    result = support.weights_only(model, tmp_path / "q.onnx", "--block-size", 64)  # 96 values in a row of fc1
    assert any("'moe'" in note and "--op-types MoE" in note for note in result["notes"])
    assert [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node] == ["MatMulNBits", "MoE"]
    for sign, op in (("weight-asymmetric", "MoE"), ("weight-symmetric", "QMoE")):  # 3 zero points of 4 bits in a row
        support.weights_only(model, tmp_path / "q.onnx", "--block-size", 32, "--set", sign)
        assert [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node] == ["MatMulNBits", op]
    support.weights_only(model, tmp_path / "q.onnx", "--set", "node-bits=moe=float", "--block-size", 32)
    assert [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node] == ["MatMulNBits", "MoE"]


def test_one_weight_for_both_layers_of_an_expert_is_refused(tmp_path: Path) -> None:
    weights = {"fc1": RNG.normal(size=(EXPERTS, HIDDEN, HIDDEN)) / 8, "router": np.zeros((HIDDEN, EXPERTS))}
    model = onnx.load(model_of(tmp_path / "m.onnx", weights | {"fc2": weights["fc1"]}, normalize_routing_weights=1))
    next(n for n in model.graph.node if n.op_type == "MoE").input[4] = "fc1"
    onnx.save(model, tmp_path / "m.onnx")
    result = support.detent(
        "quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--weights-only", "--block-size", 32, "--op-types", "MoE"
    )
    assert result.returncode == 3 and "has no weights that can be stored in blocks" in result.stderr, result.stderr


@pytest.mark.parametrize("shared", ["between nodes", "with a product", "with the outside"])
def test_weights_that_something_else_reads_stay(tmp_path: Path, shared: str) -> None:
    weights = {n: RNG.normal(size=(EXPERTS, HIDDEN, HIDDEN)) / 8 for n in ("fc1", "fc2")} | {"router": np.zeros((HIDDEN, EXPERTS))}
    model = onnx.load(model_of(tmp_path / "m.onnx", weights, normalize_routing_weights=1))
    graph, (node,) = model.graph, [n for n in model.graph.node if n.op_type == "MoE"]
    if shared == "with the outside":
        graph.output.append(helper.make_tensor_value_info("fc1", TensorProto.FLOAT, None))
    else:
        node.output[0] = "first"
        if shared == "between nodes":
            node = helper.make_node("MoE", ["first", "p", "fc2", "", "fc2"], ["y"], "other", domain="com.microsoft", k=2)
            node.attribute.append(helper.make_attribute("normalize_routing_weights", 1))
        else:
            graph.initializer.append(numpy_helper.from_array(np.int64(0), "zero"))
            graph.node.append(helper.make_node("Gather", ["fc1", "zero"], ["one"]))
            node = helper.make_node("MatMul", ["first", "one"], ["y"], "other")
        graph.node.append(node)
    onnx.save(model, tmp_path / "m.onnx")
    sample = [{"x": RNG.normal(size=(7, HIDDEN)).astype(np.float32)}]
    expected = support.outputs(support.load(tmp_path / "m.onnx"), sample)
    for bits in (4, 8):
        support.weights_only(tmp_path / "m.onnx", tmp_path / "q.onnx", "--block-size", 32, "--bits", bits, "--op-types", "MoE")
        assert "QMoE" not in {n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node}
        assert support.sqnr(expected, support.outputs(support.load(tmp_path / "q.onnx"), sample)) > 12
