"""An exact interpreter of the integer products of a Q/DQ model: int32 sums, requantized as ONNX Runtime does.

integers.py MODEL SAMPLES   runs the model on the samples (a folder of .npz), and computes each product again from the integers
                            that it read there; prints a line of JSON: integers compared and integers that differ, by product"""

import json
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime as ort
from numpy.lib.stride_tricks import sliding_window_view
from onnx import helper, numpy_helper

PRODUCTS = ("Conv", "MatMul", "Gemm")


class Graph:
    """Who makes each value, and the constants."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes = list(graph.node)
        self.made_by = {value: node for node in graph.node for value in node.output}
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def readers(self, value: str) -> list[onnx.NodeProto]:
        return [node for node in self.nodes if value in node.input]

    def quantized(self, value: str) -> onnx.NodeProto | None:
        """The DequantizeLinear that makes a value."""
        node = self.made_by.get(value)
        return node if node is not None and node.op_type == "DequantizeLinear" else None

    def quantizer(self, value: str) -> onnx.NodeProto | None:
        """The QuantizeLinear that is the only reader of a value, behind a Relu or not."""
        readers = self.readers(value)
        if len(readers) == 1 and readers[0].op_type == "Relu":
            readers = self.readers(readers[0].output[0])
        return readers[0] if len(readers) == 1 and readers[0].op_type == "QuantizeLinear" else None


def convolution(x: np.ndarray, w: np.ndarray, attributes: dict) -> np.ndarray:
    """Sums in double, which holds them exactly."""
    axes = w.ndim - 2
    groups, pads = attributes.get("group", 1), attributes.get("pads", [0] * 2 * axes)
    strides, dilations = attributes.get("strides", [1] * axes), attributes.get("dilations", [1] * axes)
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:axes], pads[axes:], strict=True)])
    reach = tuple((k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True))
    windows = sliding_window_view(x, reach, axis=tuple(range(2, x.ndim)))
    every = [slice(None, None, s) for s in strides] + [slice(None, None, d) for d in dilations]
    windows = windows[(slice(None), slice(None), *every)]
    out = []
    for x_group, w_group in zip(np.split(windows, groups, axis=1), np.split(w, groups), strict=True):
        summed = [1, *range(2 + axes, 2 + 2 * axes)], list(range(1, 2 + axes))
        out.append(np.moveaxis(np.tensordot(x_group, w_group, summed), -1, 1))
    return np.concatenate(out, axis=1)


def sums(node: onnx.NodeProto, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Conv":
        total = convolution(x, w, attributes)
        shape = [-1] + [1] * (w.ndim - 2)
    else:
        total = x @ (w.T if attributes.get("transB") else w)
        shape = [-1]
    return total if bias is None else total + bias.reshape(shape)


def requantized(total: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    bounds, offset = np.iinfo(zero.dtype), int(zero)
    steps = np.rint(total.astype(np.float32) * scale)
    return (np.clip(steps, bounds.min - offset, bounds.max - offset) + offset).astype(zero.dtype)


def exactly_requantized(total: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Without rounding to float32 on the way."""
    return divided(total * scale, np.float64(1), zero)


def divided(value: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """QuantizeLinear in float64."""
    bounds = np.iinfo(zero.dtype)
    return np.clip(np.rint(value / np.float64(scale)) + float(zero), bounds.min, bounds.max).astype(zero.dtype)


def product_again(graph: Graph, node: onnx.NodeProto, x: np.ndarray, *, in_double: bool = False) -> np.ndarray:
    """What a product makes of these integers: with scales in float32 as in ONNX Runtime, or in float64."""
    of_input, of_weight, to = graph.quantized(node.input[0]), graph.quantized(node.input[1]), graph.quantizer(node.output[0])
    x_scale, x_zero = (graph.constants[name] for name in of_input.input[1:])
    w_scale, w_zero = (graph.constants[name] for name in of_weight.input[1:])
    y_scale, y_zero = (graph.constants[name] for name in to.input[1:])
    w = graph.constants[of_weight.input[0]].astype(np.float64)
    outputs_first = node.op_type == "Conv" or any(a.name == "transB" and a.i for a in node.attribute)
    along = (-1, *[1] * (w.ndim - 1)) if outputs_first else (-1,)
    bias = None
    if len(node.input) > 2:
        bias = graph.constants[graph.quantized(node.input[2]).input[0]].astype(np.float64)
    total = sums(node, x.astype(np.float64) - float(x_zero), w - w_zero.astype(np.float64).reshape(along), bias)
    wide = [np.float64(s) for s in (x_scale, w_scale, y_scale)]
    scale = wide[0] * wide[1] / wide[2] if in_double else (x_scale * w_scale / y_scale).astype(np.float32)
    scale = scale.reshape((-1, *[1] * (w.ndim - 2))) if node.op_type == "Conv" else scale
    return (exactly_requantized if in_double else requantized)(total, scale, y_zero)


def is_integer(graph: Graph, node: onnx.NodeProto) -> bool:
    if node.op_type not in PRODUCTS or graph.quantizer(node.output[0]) is None:
        return False
    made = [graph.quantized(value) for value in node.input]
    return all(made) and all(m.input[0] in graph.constants for m in made[1:])


def compare(model: pathlib.Path, samples: pathlib.Path) -> dict:
    proto = onnx.load(model)
    graph = Graph(proto.graph)
    products = [node for node in graph.nodes if is_integer(graph, node)]
    watched = sorted({v for n in products for v in (graph.quantized(n.input[0]).input[0], graph.quantizer(n.output[0]).output[0])})
    outputs = {output.name for output in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=value) for value in watched if value not in outputs)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    compared, differ = {n.name: 0 for n in products}, {n.name: 0 for n in products}
    for path in sorted(samples.glob("*.npz")):
        found = dict(zip(watched, session.run(watched, dict(np.load(path))), strict=True))
        for node in products:
            is_made = found[graph.quantizer(node.output[0]).output[0]]
            again = product_again(graph, node, found[graph.quantized(node.input[0]).input[0]])
            compared[node.name] += again.size
            differ[node.name] += int((again != is_made).sum())
    return {"compared": compared, "differ": differ}


if __name__ == "__main__":
    print(json.dumps(compare(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))))
