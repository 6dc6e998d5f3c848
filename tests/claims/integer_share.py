"""The share of a written model's multiplications that ONNX Runtime computes on integers, by its own profile."""

import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

INTEGERS = {
    "QLinearConv",
    "QLinearMatMul",
    "QGemm",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "ConvInteger",
}
#: Weights in blocks, of which the kernel rounds what it reads to int8 at one level, and computes in float at others.
INTEGER_LEVEL, INTEGER_BLOCKS = 4, "MatMulNBits on integers"
OTHERS = {
    "If", "Loop", "Scan", "LSTM", "GRU", "RNN", "DynamicQuantizeLSTM", "Einsum", "Attention", "MultiHeadAttention", "MoE",
    "QMoE", "GroupQueryAttention",
}  # fmt: skip


def integer_share(file: Path, sample: dict[str, np.ndarray]) -> float | None:
    """None where operators multiply whose counting is another matter, or the graph holds operators on integers."""
    model = onnx.load(file, load_external_data=False)
    kinds = {node.op_type for node in model.graph.node}
    if kinds & OTHERS or any(kind.startswith("QLinear") or kind.endswith("Integer") for kind in kinds) or model.functions:
        return None
    # As the file says, for their number, and as the runtime makes of it: what is optimized has other shapes.
    total = sum(count for _, count in kernels(file, sample, ort.GraphOptimizationLevel.ORT_DISABLE_ALL))
    found = kernels(file, sample, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    return sum(count for kind, count in found if kind in INTEGERS or kind == INTEGER_BLOCKS) / total if total else None


def kernels(file: Path, sample: dict[str, np.ndarray], level: ort.GraphOptimizationLevel) -> list[tuple[str, float]]:
    """Of those that multiply: the operator, and multiplications."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = level
        options.enable_profiling = True
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        options.profile_file_prefix = str(Path(folder) / "profile")
        options.add_session_config_entry("session.disable_prepacking", "1")  # else weights go, and their shapes with them
        session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        session.run(None, sample)
        events = json.loads(Path(session.end_profiling()).read_text())
        blocks = blocks_of(onnx.load(options.optimized_model_filepath))
    found = []
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            shapes = [
                [list(next(iter(shape.values()))) for shape in event["args"].get(f"{side}_type_shape", [])]
                for side in ("input", "output")
            ]
            kind, block = event["args"]["op_name"], blocks.get(event["name"].removesuffix("_kernel_time"))
            if kind == "MatMulNBits" and block is not None:
                on_integers = block.get("accuracy_level") == INTEGER_LEVEL
                count = float(np.prod(shapes[1][0]) * block["K"])
                found.append((INTEGER_BLOCKS if on_integers else kind, count))
            else:
                found.append((kind, multiplications(kind, *shapes)))
    return [(kind, count) for kind, count in found if count]


def blocks_of(model: onnx.ModelProto) -> dict[str, dict[str, int]]:
    """Attributes of products with weights in blocks, by name."""
    return {node.name: {a.name: a.i for a in node.attribute} for node in model.graph.node if node.op_type == "MatMulNBits"}


def multiplications(kind: str, inputs: list[list[int]], outputs: list[list[int]]) -> float:
    if kind in ("Conv", "ConvInteger"):
        return float(np.prod(outputs[0]) * np.prod(inputs[1][1:]))
    if kind == "QLinearConv":
        return float(np.prod(outputs[0]) * np.prod(inputs[3][1:]))
    if kind == "ConvTranspose":
        return float(np.prod(inputs[0]) * np.prod(inputs[1][1:]))
    if kind in ("Gemm", "QGemm"):
        return float(np.prod(outputs[0]) * np.prod(inputs[0]) / outputs[0][0])
    if kind in ("MatMul", "QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"):
        return float(np.prod(outputs[0]) * inputs[0][-1])
    return 0.0
