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
    return sum(count for kind, count in found if kind in INTEGERS) / total if total else None


def kernels(file: Path, sample: dict[str, np.ndarray], level: ort.GraphOptimizationLevel) -> list[tuple[str, float]]:
    """Of those that multiply: the operator, and multiplications."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = level
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        options.add_session_config_entry("session.disable_prepacking", "1")  # else weights go, and their shapes with them
        session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        session.run(None, sample)
        events = json.loads(Path(session.end_profiling()).read_text())
    found = []
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            shapes = [
                [list(next(iter(shape.values()))) for shape in event["args"].get(f"{side}_type_shape", [])]
                for side in ("input", "output")
            ]
            found.append((event["args"]["op_name"], multiplications(event["args"]["op_name"], *shapes)))
    return [(kind, count) for kind, count in found if count]


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
