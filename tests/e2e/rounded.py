"""Runs a model as a device of 16-bit floats does: each node computes in float32, and what it makes is rounded to the type
that the model declares. ONNX Runtime's CPU computes float16 nodes in float32 and rounds only at casts, so that overflow
and lost digits do not show there."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

Values = dict[str, np.ndarray]
LOW = {TensorProto.FLOAT16: np.dtype(np.float16), TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16)}
LOW_TYPES = tuple(LOW.values())


def _high(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype in LOW_TYPES else array


def _runs_in_float32(node: onnx.NodeProto, opsets: list, functions: list, values: Values) -> list[np.ndarray]:
    """The node alone, in ONNX Runtime, with float32 for every 16-bit type."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for attribute in copy.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i in LOW:
            attribute.i = TensorProto.FLOAT
    captured = {n for a in node.attribute if a.HasField("g") for m in a.g.node for n in m.input} & set(values)
    names = list(dict.fromkeys([name for name in node.input if name] + sorted(captured)))
    feeds = {name: _high(values[name]) for name in names}
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([copy], "node", inputs, outputs)
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def types_of(model: onnx.ModelProto) -> dict[str, int]:
    """The element type of each value of the main graph."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    infos = [*graph.input, *graph.output, *graph.value_info]
    types = {i.name: i.type.tensor_type.elem_type for i in infos}
    return types | {t.name: t.data_type for t in graph.initializer}


def run(model: onnx.ModelProto, sample: Values) -> Values:
    """All values of the main graph. Values with infinities or NaN that their inputs did not have raise OverflowError."""
    types = types_of(model)
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer} | dict(sample)
    for node in model.graph.node:
        results = _runs_in_float32(node, list(model.opset_import), list(model.functions), values)
        for name, result in zip([n for n in node.output if n], results, strict=True):
            low = LOW.get(types[name])
            with np.errstate(over="ignore"):
                values[name] = result.astype(low) if low is not None else result
            if low is not None and np.isfinite(result).all() and not np.isfinite(values[name].astype(np.float32)).all():
                raise OverflowError(f"{node.op_type} {node.name}: {name} reaches {np.abs(result).max():g}")
    return values


def sqnr_db(expected: np.ndarray, got: np.ndarray) -> float:
    expected, got = expected.astype(np.float64), got.astype(np.float64)
    noise = np.sum((expected - got) ** 2)
    return float("inf") if noise == 0 else float(10 * np.log10(np.sum(expected**2) / noise))


def worst_sqnr_db(original: onnx.ModelProto, converted: onnx.ModelProto, sample: Values) -> float:
    """Of the outputs of `converted` as a device rounds them, against those of the float model."""
    session = ort.InferenceSession(original.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, sample)
    got = run(converted, sample)
    return min(sqnr_db(e, got[o.name]) for e, o in zip(expected, original.graph.output, strict=True))
