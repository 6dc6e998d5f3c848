#!/usr/bin/env python3
"""in_openvino.py MODEL SAMPLES RESULTS BATCH: a quantized model's results in OpenVINO, and the kernels of its products.

SAMPLES: .npy, or .npz with an array for each input. RESULTS: .npy, of the last output. Prints as JSON how many products between
quantized values run on integers, how many of them run in float, and how many are not quantized."""

import json
import sys

import numpy as np
import onnx
import openvino

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
KERNELS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")


def precisions(compiled):
    """Precisions of product kernels, by the names of the nodes that they come from."""
    found = {}
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = op.get_rt_info()
        if "layerType" in info and info["layerType"].astype(str) in KERNELS:
            for name in info["originalLayersNames"].astype(str).split(","):
                found.setdefault(name, set()).add(info["runtimePrecision"].astype(str))
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


def main():
    path, samples, results, batch = sys.argv[1:4] + [int(sys.argv[4])]
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_NUM_THREADS": 1})
    print(json.dumps(kernels(path, compiled)))
    data = np.load(samples)
    inputs = {compiled.inputs[0].any_name: data} if isinstance(data, np.ndarray) else dict(data)
    count, output = len(next(iter(inputs.values()))), compiled.outputs[-1]
    batches = ({name: values[i : i + batch] for name, values in inputs.items()} for i in range(0, count, batch))
    np.save(results, np.concatenate([np.array(compiled(values)[output]) for values in batches]))


if __name__ == "__main__":
    main()
