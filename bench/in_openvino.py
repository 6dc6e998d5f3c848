#!/usr/bin/env python3
"""in_openvino.py MODEL SAMPLES RESULTS BATCH [CHECKED]: a quantized model's results in OpenVINO, and the kernels of its products.

SAMPLES: .npy, or .npz with an array for each input. RESULTS: .npy, of the last output. Prints as JSON how many products between
quantized values run on integers, how many of them run in float, and how many are not quantized. CHECKED: what `detent check
--target openvino --json` printed; "same" is then the number of nodes of which it says rightly whether a kernel of integers
computes them, of "told" nodes that OpenVINO names, and "wrong" lists the others. Float is float32, also on CPUs with bfloat16."""

import json
import sys

import numpy as np
import onnx
import openvino

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
KERNELS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")
# What OpenVINO appends to the name of a product when it moves the scale behind it, and of a Gemm whose bias it takes apart.
MOVED_SCALE, APART = "/DequantizationMultiply", "/WithoutBiases"


def precisions(compiled, of=KERNELS):
    """Precisions of kernels, by the names of the nodes that they come from; `of`: their types, None: all that compute."""
    found = {}
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = op.get_rt_info()
        kind = info["layerType"].astype(str) if "layerType" in info else "Reorder"
        if kind in of if of else kind != "Reorder":
            precision = info["runtimePrecision"].astype(str)
            for name in info["originalLayersNames"].astype(str).split(","):
                found.setdefault(name.removesuffix(MOVED_SCALE).removesuffix(APART), set()).add(precision)
    return found


def kernels(path, compiled):
    graph, found = onnx.load(path).graph, precisions(compiled)
    made = {output: node.op_type for node in graph.node for output in node.output}
    counts = {"integers": 0, "float": 0, "not quantized": 0}
    for node in graph.node:
        if node.op_type not in PRODUCTS:
            continue
        if any(made.get(name) != "DequantizeLinear" for name in node.input[:2]):
            counts["not quantized"] += 1
        else:
            on_integers = {"i8", "u8"} & (found.get(node.name, set()) | found.get(node.output[0], set()))
            counts["integers" if on_integers else "float"] += 1
    return counts


def agreement(path, compiled, checked):
    nodes = {node.name or node.output[0]: node for node in onnx.load(path).graph.node}
    found = precisions(compiled, of=None)
    told, wrong = 0, []
    for judged in checked["nodes"]:
        node = nodes.get(judged["name"])
        seen = found.get(node.name, set()) | found.get(node.output[0], set()) if node is not None else set()
        told += bool(seen)
        if seen and judged["precision"].startswith("int") != bool({"i8", "u8"} & seen):
            wrong.append(f"{judged['op_type']} {judged['name']}: {judged['precision']}, and it is {', '.join(sorted(seen))}")
    return {"same": told - len(wrong), "told": told, "wrong": wrong}


def main():
    path, samples, results, batch = sys.argv[1:4] + [int(sys.argv[4])]
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    told = kernels(path, compiled)
    if len(sys.argv) > 5:
        with open(sys.argv[5]) as checked:
            told |= agreement(path, compiled, json.load(checked))
    print(json.dumps(told))
    data = np.load(samples)
    inputs = {compiled.inputs[0].any_name: data} if isinstance(data, np.ndarray) else dict(data)
    count, output = len(next(iter(inputs.values()))), compiled.outputs[-1]
    batches = ({name: values[i : i + batch] for name, values in inputs.items()} for i in range(0, count, batch))
    np.save(results, np.concatenate([np.array(compiled(values)[output]) for values in batches]))


if __name__ == "__main__":
    main()
