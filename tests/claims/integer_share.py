"""The share of a written model's multiplications that read integers, counted from its graph alone."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

PRODUCTS = {"Conv", "ConvTranspose", "MatMul", "Gemm"}
MOVEMENT = {"Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Identity"}
OTHERS = {
    "If", "Loop", "Scan", "LSTM", "GRU", "RNN", "DynamicQuantizeLSTM", "Einsum", "Attention", "MultiHeadAttention", "MoE",
    "QMoE", "GroupQueryAttention",
}  # fmt: skip


def integer_share(file: Path, sample: dict[str, np.ndarray]) -> float | None:
    """None where operators multiply whose counting is another matter, or the graph holds operators on integers."""
    model = onnx.load(file)
    kinds = {node.op_type for node in model.graph.node}
    if kinds & OTHERS or any(kind.startswith("QLinear") or kind.endswith("Integer") for kind in kinds) or model.functions:
        return None
    made = {output: node for node in model.graph.node for output in node.output}
    products = [node for node in model.graph.node if node.op_type in PRODUCTS]
    if not products:
        return None
    known = {value.name for value in [*model.graph.input, *model.graph.output]} | {t.name for t in model.graph.initializer}
    wanted = list(dict.fromkeys(name for node in products for name in [*node.input[:2], node.output[0]]))
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in known)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    shapes = {name: value.shape for name, value in zip(names, session.run(None, sample), strict=True)}
    shapes |= {name: value.shape for name, value in sample.items()} | {t.name: tuple(t.dims) for t in model.graph.initializer}
    integers = total = 0.0
    for node in products:
        count = multiplications(node, shapes)
        total += count
        integers += count if all(reads_integers(made.get(name)) for name in node.input[:2]) else 0
    return integers / total if total else None


def reads_integers(node: onnx.NodeProto | None) -> bool:
    return node is not None and node.op_type == "DequantizeLinear"


def multiplications(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> float:
    x, w, y = (shapes[name] for name in (*node.input[:2], node.output[0]))
    if node.op_type == "Conv":
        return float(np.prod(y)) * float(np.prod(w[1:]))
    if node.op_type == "ConvTranspose":
        return float(np.prod(x)) * float(np.prod(w[1:]))
    if node.op_type == "Gemm":
        turned = any(a.name == "transA" and a.i for a in node.attribute)
        return float(np.prod(y)) * x[0 if turned else 1]
    return float(np.prod(y)) * x[-1]
