#!/usr/bin/env python3
"""detent's solvers beside a plain AdaRound on layers of trained models, 4-bit weights per channel.

  adaround_reference.py MODEL CALIBRATION HELD_BACK.npy [--layers 6] [--num-iterations 1000] [--solver build/bench_solve_layer]

MODEL is a float model, CALIBRATION a folder of .npz samples and HELD_BACK samples of the model's only input, as scores.py's tasks
prepare them. The reference is the paper's method (Nagel et al. 2020, arXiv:2004.10568) in numpy with nothing added: mini-batches of
whole samples, Adam, soft rounding, the regularizer after a warm start, rounding at the end. Each layer's inputs are the float
model's, rounded to 8 bits; targets are the layer's outputs in the float model. Every solver gets the same
calibration samples, and all are judged by the mean squared error of the layer's output on the held-back ones.

The file for bench_solve_layer holds int64 numbers (spatial axes; channels in and out; groups; kernel, strides, dilations, pads at
the beginning and at the end; lowest and highest integer; samples; shape of an input), then float32: weights [outputs, fan-in],
scales, bias, and each sample's input and target."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

BITS = 4
SOLVERS = {
    "adaround gram": ("adaround", "gram"),
    "adaround streamed": ("adaround", "streamed"),
    "adaquant gram": ("adaquant", "gram"),
    "gptq": ("gptq", "gram"),
}


@dataclass
class Layer:
    """A two-dimensional convolution without groups, and what goes in and out of it."""

    name: str
    weights: np.ndarray  # [outputs, inputs, kernel, kernel]
    bias: np.ndarray
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[int]  # top, left, bottom, right
    inputs: np.ndarray  # [samples, channels, height, width]
    targets: np.ndarray
    held_inputs: np.ndarray
    held_targets: np.ndarray

    @property
    def matrix(self) -> np.ndarray:
        return self.weights.reshape(len(self.weights), -1)

    @property
    def scale(self) -> np.ndarray:
        largest = np.abs(self.matrix).max(1)
        return np.where(largest > 0, largest / (2 ** (BITS - 1) - 1), 1).astype(np.float32)

    def patches(self, x: np.ndarray) -> np.ndarray:
        """[samples, fan-in, positions]: what the weights, as a matrix, are multiplied with."""
        top, left, bottom, right = self.pads
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        (kh, kw), (dh, dw) = self.kernel, self.dilations
        windows = np.lib.stride_tricks.sliding_window_view(x, (dh * (kh - 1) + 1, dw * (kw - 1) + 1), (2, 3))
        windows = windows[:, :, :: self.strides[0], :: self.strides[1], ::dh, ::dw]
        return windows.transpose(0, 1, 4, 5, 2, 3).reshape(len(x), self.matrix.shape[1], -1)

    def error(self, integers: np.ndarray) -> float:
        """Mean squared error on the held-back samples."""
        weights = integers * self.scale[:, None]
        total = 0.0
        for x, y in zip(self.held_inputs, self.held_targets):
            got = weights @ self.patches(x[None])[0] + self.bias[:, None]
            total += float(((got - y.reshape(len(y), -1)) ** 2).mean(dtype=np.float64))
        return total / len(self.held_inputs)


def nearest(layer: Layer) -> np.ndarray:
    return np.clip(np.rint(layer.matrix / layer.scale[:, None]), -(2 ** (BITS - 1)), 2 ** (BITS - 1) - 1)


def adaround(layer: Layer, iterations: int, batch: int, rate: float, seed: int = 0) -> np.ndarray:
    """h(V) = clip(sigmoid(V) · 1.2 − 0.1, 0, 1); loss: mean over columns of the sum over outputs of the squared error, plus
    λ · sum of 1 − |2h − 1|^β; β falls from 20 to 2 along a cosine after a fifth of the iterations; λ = 0.01."""
    rng = np.random.default_rng(seed)
    patches = layer.patches(layer.inputs)
    targets = layer.targets.reshape(*layer.targets.shape[:2], -1)
    scaled = layer.matrix / layer.scale[:, None]
    floor = np.floor(scaled)
    lowest, highest = -(2 ** (BITS - 1)), 2 ** (BITS - 1) - 1
    v = -np.log(1.2 / (scaled - floor + 0.1) - 1).astype(np.float32)
    mean, square = np.zeros_like(v), np.zeros_like(v)
    warm = int(0.2 * iterations)
    for step in range(iterations):
        chosen = rng.permutation(len(layer.inputs))[:batch]
        sigmoid = 1 / (1 + np.exp(-v))
        h = np.clip(1.2 * sigmoid - 0.1, 0, 1)
        inside = (floor + h >= lowest) & (floor + h <= highest)
        weights = np.clip(floor + h, lowest, highest) * layer.scale[:, None]
        x, y = np.concatenate(list(patches[chosen]), 1), np.concatenate(list(targets[chosen]), 1)
        wrong = weights @ x + layer.bias[:, None] - y
        slope = 2 / wrong.shape[1] * (wrong @ x.T) * layer.scale[:, None] * inside
        if step >= warm:
            beta = 2 + 9 * (1 + np.cos(np.pi * (step - warm) / (iterations - warm)))
            away = 2 * h - 1
            slope = slope - 0.01 * 2 * beta * np.sign(away) * np.abs(away) ** (beta - 1)
        slope = slope * 1.2 * sigmoid * (1 - sigmoid) * ((h > 0) & (h < 1))
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        v -= (rate * mean / (1 - 0.9 ** (step + 1)) / (np.sqrt(square / (1 - 0.999 ** (step + 1))) + 1e-8)).astype(np.float32)
    return np.clip(floor + (v >= 0), lowest, highest)


def solved(layer: Layer, solver: str, rounding: str, form: str, a: argparse.Namespace) -> tuple[np.ndarray, float]:
    with tempfile.TemporaryDirectory() as folder:
        problem, out = Path(folder, "problem"), Path(folder, "out")
        numbers = [2, layer.weights.shape[1], len(layer.weights), 1, *layer.kernel, *layer.strides, *layer.dilations, *layer.pads]
        numbers += [-(2 ** (BITS - 1)), 2 ** (BITS - 1) - 1, len(layer.inputs), 1, *layer.inputs.shape[1:]]
        with open(problem, "wb") as file:
            np.array(numbers, np.int64).tofile(file)
            for array in (layer.matrix, layer.scale, layer.bias):
                array.astype(np.float32).tofile(file)
            for x, y in zip(layer.inputs, layer.targets):
                x.astype(np.float32).tofile(file)
                y.astype(np.float32).tofile(file)
        command = [solver, problem, out, rounding, form, a.num_iterations, a.batch_size, a.threads]
        seconds = float(subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout)
        return np.fromfile(out, np.int32).reshape(layer.matrix.shape), seconds


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def rounded(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """As uint8 with a zero point for this range."""
    low, high = min(low, 0), max(high, 0)
    scale = (high - low) / 255 or 1
    zero = np.rint(-low / scale)
    return ((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)


def smaller(nodes: list[onnx.NodeProto], model: onnx.ModelProto, a: argparse.Namespace) -> list[onnx.NodeProto]:
    """Those whose output has at most `a.largest_positions` positions."""
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    del asked.graph.output[:]
    value = lambda n: helper.make_tensor_value_info(n.output[0], onnx.TensorProto.FLOAT, None)
    asked.graph.output.extend(value(n) for n in nodes)
    session = onnxruntime.InferenceSession(asked.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = session.run(None, {session.get_inputs()[0].name: np.load(a.held_back, mmap_mode="r")[:1]})
    return [n for n, y in zip(nodes, outputs) if y[0, 0].size <= a.largest_positions]


def layers_of(a: argparse.Namespace) -> list[Layer]:
    """Evenly spread over those that fit."""
    model = onnx.load(a.model)
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and attribute(node, "value", None) is not None:
            constants[node.output[0]] = numpy_helper.to_array(attribute(node, "value", None))
    fits = lambda n: n.op_type == "Conv" and n.input[1] in constants and constants[n.input[1]].ndim == 4
    plain = lambda n: attribute(n, "group", 1) == 1 and attribute(n, "auto_pad", b"NOTSET") == b"NOTSET"
    nodes = [n for n in model.graph.node if fits(n) and plain(n) and constants[n.input[1]].size <= a.largest]
    nodes = [n for n in nodes if any(n.input[0] in other.output for other in model.graph.node)]
    nodes = smaller(nodes, model, a)
    nodes = [nodes[i] for i in np.unique(np.linspace(0, len(nodes) - 1, a.layers).astype(int))]
    tensors = [name for n in nodes for name in (n.input[0], n.output[0])]
    shown = {value.name for value in model.graph.output}
    model.graph.output.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in dict.fromkeys(tensors) if name not in shown
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    calibration = [dict(np.load(path))[name] for path in sorted(Path(a.calibration).glob("*.npz"))[: a.samples]]
    run = lambda samples: [np.concatenate(v) for v in zip(*(session.run(tensors, {name: x}) for x in samples))]
    known = run(calibration)
    held = run([x[None] for x in np.load(a.held_back, mmap_mode="r")[: a.held_back_samples]])
    found: list[Layer] = []
    for i, node in enumerate(nodes):
        weights, (x, y, hx, hy) = constants[node.input[1]], (known[2 * i], known[2 * i + 1], held[2 * i], held[2 * i + 1])
        bias = constants[node.input[2]] if len(node.input) > 2 else np.zeros(len(weights), np.float32)
        low, high = float(x.min()), float(x.max())
        settings = [list(attribute(node, key, default)) for key, default in (("strides", [1, 1]), ("dilations", [1, 1]))]
        kernel, pads = list(weights.shape[2:]), list(attribute(node, "pads", [0] * 4))
        data = (rounded(x, low, high), y, rounded(hx, low, high), hy)
        found.append(Layer(node.name or node.output[0], weights, bias, kernel, *settings, pads, *data))
    return found


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("calibration")
    p.add_argument("held_back")
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--largest", type=int, default=300000, help="largest number of weights of a layer")
    p.add_argument("--largest-positions", type=int, default=800, help="largest number of positions of a layer's output")
    p.add_argument("--samples", type=int, default=32)
    p.add_argument("--held-back-samples", type=int, default=16)
    p.add_argument("--num-iterations", type=int, default=1000)
    p.add_argument("--batch-size", type=int, default=4)
    p.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.01], help="learning rates of the reference")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--solver", default="build/bench_solve_layer")
    p.add_argument("--json")
    a = p.parse_args()
    a.solver = os.path.abspath(a.solver)
    names = [f"reference {rate:g}" for rate in a.rates] + list(SOLVERS)
    print(f"| layer | weights | nearest MSE | {' | '.join(names)} |\n|---|---|---|{'---|' * len(names)}", flush=True)
    rows = []
    for layer in layers_of(a):
        base = layer.error(nearest(layer))
        row: dict[str, Any] = {"layer": layer.name, "shape": layer.weights.shape, "nearest": base, "errors": {}, "seconds": {}}
        for rate, name in zip(a.rates, names):
            start = time.monotonic()
            row["errors"][name] = layer.error(adaround(layer, a.num_iterations, a.batch_size, rate))
            row["seconds"][name] = time.monotonic() - start
        for name, (rounding, form) in SOLVERS.items():
            integers, row["seconds"][name] = solved(layer, a.solver, rounding, form, a)
            row["errors"][name] = layer.error(integers)
        rows.append(row)
        cells = [f"{row['errors'][name] / base:.3f} ({row['seconds'][name]:.1f} s)" for name in names]
        shape = "×".join(map(str, layer.weights.shape))
        print(f"| {layer.name} | {shape} | {base:.3g} | {' | '.join(cells)} |", flush=True)
        if a.json:
            Path(a.json).write_text(json.dumps(rows, indent=1))
    mean = lambda values: sum(values) / len(rows)
    cells = [f"{mean(r['errors'][n] / r['nearest'] for r in rows):.3f} ({sum(r['seconds'][n] for r in rows):.1f} s)" for n in names]
    print(f"| mean (total time) | | | {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())
