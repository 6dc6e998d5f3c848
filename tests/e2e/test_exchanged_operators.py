"""An operator is exchanged for another one only where that one honours each of its attributes: every attribute with every kind of
value, each result run as deployed beside the float model in ONNX Runtime."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from failures import BAD_INPUT
from onnx import TensorProto, helper, numpy_helper

CONTRIB = "com.microsoft"
RNG = np.random.default_rng(11)


def weights(*shape: int) -> np.ndarray:
    return (RNG.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)


def model_of(path: Path, node: onnx.NodeProto, inputs: dict[str, tuple], tensors: dict[str, np.ndarray], opset: int) -> Path:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in node.output if n]
    graph = helper.make_graph([node], "g", ends, results, [numpy_helper.from_array(v, n) for n, v in tensors.items()])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def variants(**values: list) -> list[dict]:
    """The first value of each, with each other value of one, and some pairs of others."""
    first = {name: options[0] for name, options in values.items()}
    changed = [{name: option} for name, options in values.items() for option in options[1:]]
    pairs = [a | b for a, b in itertools.pairwise(changed) if not a.keys() & b.keys()]
    return [{k: v for k, v in (first | change).items() if v is not None} for change in [{}, *changed, *pairs]]


def check(tmp_path: Path, made: Path, inputs: dict[str, tuple], options: list[object], least: float) -> set[str]:
    """The operators of the result, which must be near the float model (or refused by both runtimes alike)."""
    try:
        float_session = ort.InferenceSession(made, providers=["CPUExecutionProvider"])
        samples = [{n: RNG.normal(size=s).astype(np.float32) for n, s in inputs.items()} for _ in range(4)]
        expected = support.outputs(float_session, samples)
    except Exception:  # a combination that ONNX Runtime does not have
        return set()
    if not all(np.isfinite(value).all() for values in expected for value in values):
        return set()  # or has without the numbers that it would need
    data = support.save_samples(Path(tempfile.mkdtemp(dir=tmp_path)) / "samples", samples)
    output = tmp_path / "q.onnx"
    result = support.detent("quantize", made, "-o", output, "--calibration-data", data, *options, "--no-bench")
    if result.returncode == BAD_INPUT and ("nothing to quantize" in result.stderr or "no weights that can" in result.stderr):
        return set()  # nothing but this node, which stays in float
    assert result.returncode == 0, result.stderr
    assert support.sqnr(expected, support.outputs(support.load(output), samples)) > least, result.stdout
    return {n.op_type for n in onnx.load(output).graph.node}


MOE = variants(
    k=[2, 1, 4],
    activation_type=["silu", "relu", "gelu", "identity", "swiglu"],
    normalize_routing_weights=[1, 0, None],
    use_sparse_mixer=[0, 1],
    swiglu_fusion=[0, 1],
    swiglu_limit=[None, 0.5],
    activation_alpha=[None, 1.5],
    activation_beta=[None, 0.5],
)


@pytest.mark.full
def test_moe(tmp_path: Path) -> None:
    made = 0
    for attributes in MOE:
        swiglu = attributes["activation_type"] == "swiglu"
        if swiglu != bool(attributes["swiglu_fusion"]):
            continue
        tensors = {"w1": weights(4, 128 if swiglu else 64, 32), "w2": weights(4, 32, 64)}
        node = helper.make_node("MoE", ["x", "r", "w1", "", "w2"], ["y"], "moe", domain=CONTRIB, **attributes)
        path = model_of(tmp_path / "m.onnx", node, {"x": ("n", 32), "r": ("n", 4)}, tensors, 17)
        ops = check(tmp_path, path, {"x": (32, 32), "r": (32, 4)}, ["--weights-only", "--bits", 8], 30)
        made += "QMoE" in ops
        assert "QMoE" not in ops or attributes.get("normalize_routing_weights") == 1
    assert made > 10


LSTM = variants(
    direction=["forward", "reverse", "bidirectional"],
    activations=[None, ["HardSigmoid", "Softsign", "Tanh"], ["Sigmoid", "LeakyRelu", "Affine"], ["Sigmoid", "Elu", "Relu"]],
    clip=[None, 0.3],
    input_forget=[0, 1],
    layout=[0, 1],
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("extra", ["plain", "state", "peepholes"])
def test_lstm(tmp_path: Path, extra: str) -> None:
    hidden, width = 16, 8
    made = 0
    for given in LSTM:
        attributes = dict(given)
        directions = 2 if attributes["direction"] == "bidirectional" else 1
        if "activations" in attributes:
            kinds = attributes["activations"] = attributes["activations"] * directions
            numbers = {"HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.1, None), "Affine": (0.8, 0.1), "Elu": (1.5, None)}
            given_numbers = [numbers[kind] for kind in kinds if kind in numbers]
            attributes["activation_alpha"] = [a for a, _ in given_numbers]
            attributes["activation_beta"] = [b for _, b in given_numbers if b is not None] or [0.0]
        tensors = {
            "w": weights(directions, 4 * hidden, width),
            "r": weights(directions, 4 * hidden, hidden),
            "b": weights(directions, 8 * hidden),
        }
        names = ["x", "w", "r", "b"]
        if extra != "plain":
            state = (3, directions, hidden) if attributes["layout"] else (directions, 3, hidden)
            tensors |= {"h": weights(*state), "c": weights(*state)}
            names += ["", "h", "c"]
        if extra == "peepholes":
            tensors["p"] = weights(directions, 3 * hidden)
            names.append("p")
        node = helper.make_node("LSTM", names, ["y", "yh", "yc"], "lstm", hidden_size=hidden, **attributes)
        inputs = {"x": (3, 5, width) if attributes["layout"] else (5, 3, width)}
        path = model_of(tmp_path / "m.onnx", node, inputs, tensors, 17)
        ops = check(tmp_path, path, inputs, ["--activations", "dynamic", "--op-types", "LSTM"], 25)
        made += "DynamicQuantizeLSTM" in ops
    assert made > 5


QOPERATORS = {
    "Conv": variants(
        auto_pad=[None, "SAME_UPPER", "SAME_LOWER", "VALID"],
        dilations=[None, [2, 2]],
        group=[None, 2],
        pads=[None, [1, 2, 0, 1]],
        strides=[None, [2, 1]],
    ),
    "Gemm": variants(alpha=[None, 0.5], beta=[None, 0.5], transA=[None, 1], transB=[None, 1]),
    "LeakyRelu": variants(alpha=[None, 0.2, -0.5, 1.5]),
    "Softmax": variants(axis=[None, 1, 2, -2]),
    "AveragePool": variants(
        kernel_shape=[[3, 3]],
        auto_pad=[None, "SAME_UPPER", "SAME_LOWER", "VALID"],
        ceil_mode=[None, 1],
        count_include_pad=[None, 1],
        dilations=[None, [2, 2], [1, 1]],
        pads=[None, [1, 1, 1, 1], [1, 0, 0, 1]],
        strides=[[2, 2], [1, 1], [3, 3]],
    ),
    "Concat": variants(axis=[1, 2, -1]),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", ["qdq", "qoperator"])
@pytest.mark.parametrize("opset", [12, 19])
@pytest.mark.parametrize("op", QOPERATORS)
def test_operators_on_integers(tmp_path: Path, op: str, opset: int, way: str) -> None:
    for given in QOPERATORS[op]:
        attributes = dict(given)
        if "auto_pad" in attributes:
            attributes.pop("pads", None)
        inputs: dict[str, tuple] = {"x": (2, 4, 3, 2) if op == "Softmax" else (2, 4, 9, 11)}
        tensors: dict[str, np.ndarray] = {}
        if op == "Conv":
            tensors = {"w": weights(6, 4 // attributes.get("group", 1), 3, 3), "b": weights(6)}
        elif op == "Gemm":
            inputs = {"x": (8, 5) if attributes.get("transA") else (5, 8)}
            tensors = {"w": weights(6, 8) if attributes.get("transB") else weights(8, 6), "b": weights(6)}
        elif op == "Concat":
            inputs["x2"] = inputs["x"]
        node = helper.make_node(op, [*inputs, *tensors], ["y"], op, **attributes)
        path = model_of(tmp_path / "m.onnx", node, inputs, tensors, opset)
        options = ["--preset", "plain", "--quant-format", way, "--op-types", op]
        check(tmp_path, path, inputs, options, 25)
