#!/usr/bin/env python3
"""in_ort.py MODEL SAMPLES RESULTS BATCH CHECKED: a quantized model's results in ONNX Runtime on this CPU, and its kernels.

As in_qnn.py. "integers": products whose kernel computes on integers, "float": those between quantized values that run in float,
by the graph that ONNX Runtime makes of the model."""

import json
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

PAIRS = ("QuantizeLinear", "DequantizeLinear")
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
ON_INTEGERS = ("QLinear", "QGemm", "MatMulInteger", "ConvInteger", "DynamicQuantize", "MatMulNBits", "QAttention")


def optimized(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/model.onnx"
        loaded = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return loaded, onnx.load(f"{folder}/model.onnx").graph


class Kernels:
    """Which nodes of a graph run on integers in the graph that the runtime made of it; None: the node is in another, or gone."""

    def __init__(self, graph, made):
        self.readers = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.kernel = {output: node for node in made.node for output in node.output}
        self.outputs = {value.name for value in graph.output}

    def places(self, node):
        """The values that a kernel of this node may make: its own, or its integers."""
        name = node.output[0]
        yield name
        for reader in self.readers.get(name, []):
            if reader.op_type == "QuantizeLinear":
                yield reader.output[0]

    def on_integers(self, node):
        for name in self.places(node):
            kernel = self.kernel.get(name)
            if kernel is None or kernel.op_type == "QuantizeLinear":
                continue
            if kernel.op_type.startswith(ON_INTEGERS):
                return True
            if kernel.op_type == node.op_type:
                maker = self.kernel.get(kernel.input[0])
                reads_floats = maker is None or maker.op_type == "DequantizeLinear"
                return not reads_floats and name != node.output[0]
            if kernel.op_type not in PAIRS:
                return False
        return None


def judged_nodes(path, made, checked):
    graph = onnx.load(path).graph
    kernels = Kernels(graph, made)
    nodes = {node.name or node.output[0]: node for node in graph.node}
    for judged in checked["nodes"]:
        if judged["name"] in nodes:
            seen = kernels.on_integers(nodes[judged["name"]])
            if seen is not None:
                yield judged, nodes[judged["name"]], seen


def main():
    path, samples, results, batch = sys.argv[1:4] + [int(sys.argv[4])]
    loaded, made = optimized(path)
    with open(sys.argv[5]) as checked:
        seen = list(judged_nodes(path, made, json.load(checked)))
    makers = {output: node.op_type for node in onnx.load(path).graph.node for output in node.output}
    told = {"integers": 0, "float": 0, "not quantized": 0}
    for _, node, on_integers in seen:
        if node.op_type in PRODUCTS:
            quantized = all(makers.get(name) == "DequantizeLinear" for name in node.input[:2])
            told["integers" if on_integers else "float" if quantized else "not quantized"] += 1
    wrong = [
        f"{judged['op_type']} {judged['name']}: {judged['precision']}, and it is {'int8' if on_integers else 'float'}"
        for judged, _, on_integers in seen
        if judged["precision"].startswith("int") != on_integers
    ]
    print(json.dumps(told | {"same": len(seen) - len(wrong), "told": len(seen), "wrong": wrong}))
    data = np.load(samples)
    inputs = {loaded.get_inputs()[0].name: data} if isinstance(data, np.ndarray) else dict(data)
    count, output = len(next(iter(inputs.values()))), loaded.get_outputs()[-1].name
    batches = ({name: values[i : i + batch] for name, values in inputs.items()} for i in range(0, count, batch))
    np.save(results, np.concatenate([loaded.run([output], values)[0] for values in batches]))


if __name__ == "__main__":
    main()
