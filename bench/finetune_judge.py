#!/usr/bin/env python3
"""How far each layer of quantized models is from the float model, on the same samples: one judge for all tools.

  finetune_judge.py FLOAT NPZ_DIR QUANTIZED ...       prints {QUANTIZED: {layer: {"own": …, "same": …, "signal": …}}}

Layers are Conv, ConvTranspose, Gemm and MatMul with constant weights, found by their names. The errors are means of squares over
all elements of the layer's output, before the activation that may follow:

own     in the quantized model as it runs, Q/DQ computed in float: with the errors of all layers before
same    the layer alone with its stored weights and bias, given the float model's inputs
signal  mean square of the float layer's output"""

import json
import pathlib
import sys
from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

TYPES = ("Conv", "ConvTranspose", "Gemm", "MatMul")
Arrays = dict[str, np.ndarray]


def session_of(model: onnx.ModelProto, in_float: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if in_float:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Network:
    def __init__(self, path: str):
        self.model = onnx.load(path)
        graph = self.model.graph
        self.constants = {t.name: t for t in graph.initializer}
        self.producers = {name: node for node in graph.node for name in node.output}
        self.nodes = {node.name: node for node in graph.node if node.op_type in TYPES}

    def constant(self, name: str) -> np.ndarray | None:
        """The value of an initializer, or of one behind DequantizeLinear."""
        if name in self.constants:
            return numpy_helper.to_array(self.constants[name])
        node = self.producers.get(name)
        if node is None or node.op_type != "DequantizeLinear" or node.input[0] not in self.constants:
            return None
        stored = numpy_helper.to_array(self.constants[node.input[0]])
        scale = self.constant(node.input[1])
        zero = self.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros_like(scale)
        assert scale is not None and zero is not None
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        if scale.size > 1:
            spread = [1] * stored.ndim
            spread[axis] = scale.size
            scale, zero = scale.reshape(spread), zero.reshape(spread)
        else:
            scale, zero = scale.reshape(()), zero.reshape(())
        return ((stored.astype(np.float64) - zero.astype(np.float64)) * scale).astype(np.float32)

    def runs(self, tensors: list[str], folder: pathlib.Path, in_float: bool) -> Iterator[Arrays]:
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        known = {value.name for value in model.graph.output}
        for name in tensors:
            if name not in known:
                model.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        session = session_of(model, in_float)
        names = {value.name for value in session.get_inputs()}
        for path in sorted(folder.glob("*.npz")):
            sample = dict(np.load(path))
            yield dict(zip(tensors, session.run(tensors, sample))) | {n: v for n, v in sample.items() if n in names}


def alone(node: onnx.NodeProto, constants: list[np.ndarray], opset: int) -> onnxruntime.InferenceSession:
    names = ["x", "w", "b"][: 1 + len(constants)]
    copy = helper.make_node(node.op_type, names, ["y"])
    copy.attribute.extend(node.attribute)
    value = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(np.ascontiguousarray(array, np.float32), n) for array, n in zip(constants, names[1:])]
    graph = helper.make_graph([copy], "layer", [value("x")], [value("y")], weights)
    return session_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), False)


def judge(float_path: str, folder: pathlib.Path, paths: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    reference = Network(float_path)
    opset = next(o.version for o in reference.model.opset_import if o.domain == "")
    layers = {n: node for n, node in reference.nodes.items() if reference.constant(node.input[1]) is not None}
    results: dict[str, dict[str, dict[str, float]]] = {}
    for path in paths:
        network = Network(path)
        shared = {name: node for name, node in layers.items() if name in network.nodes}
        if len(shared) < len(layers):
            print(f"{path}: not there: {', '.join(sorted(set(layers) - set(shared)))}", file=sys.stderr)
        single = {}
        for name, node in shared.items():
            stored = [network.constant(i) for i in network.nodes[name].input[1:] if i]
            if all(array is not None for array in stored):
                single[name] = alone(node, [array for array in stored if array is not None], opset)
        sums = {name: {"own": 0.0, "same": 0.0, "signal": 0.0} for name in single}
        count = 0
        wanted = sorted({node.output[0] for node in shared.values()} | {node.input[0] for node in shared.values()})
        wanted = [name for name in wanted if name in reference.producers]
        floats = reference.runs(wanted, folder, False)
        own_outputs = [network.nodes[name].output[0] for name in single]
        for values, quantized in zip(floats, network.runs(own_outputs, folder, True)):
            count += 1
            for name, own in zip(single, own_outputs):
                target = values[layers[name].output[0]].astype(np.float64)
                y = single[name].run(None, {"x": values[layers[name].input[0]]})[0]
                sums[name]["own"] += float(((quantized[own] - target) ** 2).mean())
                sums[name]["same"] += float(((y - target) ** 2).mean())
                sums[name]["signal"] += float((target**2).mean())
        results[path] = {name: {key: value / count for key, value in row.items()} for name, row in sums.items()}
    return results


if __name__ == "__main__":
    print(json.dumps(judge(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:])))
