#!/usr/bin/env python3
"""in_qnn.py MODEL SAMPLES RESULTS BATCH CHECKED: a quantized model's results in the simulator of the package onnxruntime-qnn.

SAMPLES: .npy, or .npz with an array for each input. RESULTS: .npy, of the last output. CHECKED: what `detent check --target qnn
--json` printed. Prints as JSON whether the HTP takes the model as a whole ("whole": without falling back to the CPU), of how many
operators it runs ("integers": between quantized values, "not quantized"), how many the CPU runs ("float"), and of how many nodes
`detent check` says rightly where they run ("same", of "told"; "wrong" lists the others). "steps" is the largest difference from
ONNX Runtime's CPU in float arithmetic, in steps of the output's scale, or None where it is not quantized."""

import json
import re
import sys

import numpy as np
import onnx
import onnxruntime
import onnxruntime_qnn
from onnx import numpy_helper

PAIRS = ("QuantizeLinear", "DequantizeLinear")


def session(path, fallback):
    name = onnxruntime_qnn.get_ep_name()
    if not any(device.ep_name == name for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
    device = next(device for device in onnxruntime.get_ep_devices() if device.ep_name == name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "0" if fallback else "1")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_provider_for_devices([device], {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "htp_arch": "73"})
    return onnxruntime.InferenceSession(path, options)


def load(path):
    try:
        return session(path, fallback=False), True
    except Exception:
        return session(path, fallback=True), False


def operators(path, loaded):
    """Where the nodes that compute run, by name; those that vanish are left out."""
    places = {}
    for part in loaded.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            places[re.sub(r"_token_\d+$", "", node.name)] = part.ep_name  # so are nodes called whose layout is changed
    graph = onnx.load(path).graph
    return {node.name: (node, places[node.name]) for node in graph.node if node.op_type not in PAIRS and node.name in places}


def counts(path, found):
    made = {output: node.op_type for node in onnx.load(path).graph.node for output in node.output}
    told = {"integers": 0, "float": 0, "not quantized": 0}
    for node, place in found.values():
        quantized = bool(node.input) and made.get(node.input[0]) == "DequantizeLinear"
        told["float" if place.startswith("CPU") else "integers" if quantized else "not quantized"] += 1
    return told


def agreement(found, checked):
    told, wrong = 0, []
    for judged in checked["nodes"]:
        if judged["name"] not in found:
            continue
        told += 1
        on_cpu = found[judged["name"]][1].startswith("CPU")
        if judged["on_cpu"] != on_cpu:
            wrong.append(f"{judged['op_type']} {judged['name']}: {judged['rule']}, and it runs on the {'CPU' if on_cpu else 'HTP'}")
    return {"same": told - len(wrong), "told": told, "wrong": wrong}


def step_of(path, output):
    graph = onnx.load(path).graph
    node = next((node for node in graph.node if output in node.output), None)
    while node is not None and node.op_type in ("Identity", "Reshape"):
        node = next((other for other in graph.node if node.input[0] in other.output), None)
    if node is None or node.op_type != "DequantizeLinear":
        return None
    return next((float(numpy_helper.to_array(tensor)) for tensor in graph.initializer if tensor.name == node.input[1]), None)


def main():
    path, samples, results, batch = sys.argv[1:4] + [int(sys.argv[4])]
    loaded, whole = load(path)
    found = operators(path, loaded)
    told = {"whole": whole, **counts(path, found)}
    with open(sys.argv[5]) as checked:
        told |= agreement(found, json.load(checked))
    data = np.load(samples)
    inputs = {loaded.get_inputs()[0].name: data} if isinstance(data, np.ndarray) else dict(data)
    count, output = len(next(iter(inputs.values()))), loaded.get_outputs()[-1].name
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    in_float = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    step, made, most = step_of(path, output), [], 0.0
    for i in range(0, count, batch):
        values = {name: array[i : i + batch] for name, array in inputs.items()}
        made.append(loaded.run([output], values)[0])
        if step:
            most = max(most, float(np.abs(made[-1] - in_float.run([output], values)[0]).max()) / step)
    np.save(results, np.concatenate(made))
    print(json.dumps(told | {"steps": round(most, 2) if step else None}))


if __name__ == "__main__":
    main()
