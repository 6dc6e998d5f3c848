#!/usr/bin/env python3
"""in_ort.py MODEL SAMPLES RESULTS BATCH CHECKED: a quantized model's results in ONNX Runtime on this CPU, and its kernels.

As in_qnn.py. "integers": products whose kernel computes on integers, "float": those between quantized values that run in float,
by the graph that ONNX Runtime makes of the model."""

import json
import re
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

PAIRS = ("QuantizeLinear", "DequantizeLinear")
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
MOVEMENT = """DepthToSpace Expand Flatten Gather Identity MaxPool Pad Reshape Resize Slice Split Squeeze Tile Transpose
Unsqueeze""".split()
MAKES_INTEGERS = ("QuantizeLinear", "QLinear", "QGemm")
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
    """Which nodes of a model run on integers in the graph that the runtime made of it; None: the node is in another, or gone."""

    def __init__(self, made):
        # Kernels have the names of the nodes that they come from, with a mark where the layout is changed.
        self.named = {re.sub(r"_token_\d+$", "", node.name): node for node in made.node}
        self.maker = {output: node for node in made.node for output in node.output}

    def holds_integers(self, value):
        maker = self.maker.get(value)
        if maker is None:
            return False
        if maker.op_type.startswith(MAKES_INTEGERS):
            return True
        return self.moves(maker) and self.holds_integers(maker.input[0])

    def moves(self, kernel):
        return kernel.op_type.removeprefix("Nhwc") in MOVEMENT

    def on_integers(self, node):
        kernel = self.named.get(node.name) if node.name else None
        kernel = kernel or self.maker.get(node.output[0])
        if kernel is None or kernel.op_type in PAIRS:
            return None
        if kernel.op_type.startswith(ON_INTEGERS):
            return True
        return self.moves(kernel) and self.holds_integers(kernel.input[0])


def judged_nodes(path, made, checked):
    graph = onnx.load(path).graph
    kernels = Kernels(made)
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
