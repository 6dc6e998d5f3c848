#!/usr/bin/env python3
"""How the time of detent's own passes over a graph grows with its nodes: exit status 1 where it grows faster than nodes ** 1.1.

graph_scale.py [SHAPE...] [--nodes 1000 10000 100000] [--seconds LIMIT] [--json FILE]

The runtime's own time, which may grow with the square of the nodes, is measured in the same process by
`bench_timed_runtime` (cmake --build build --target bench_timed_runtime) and left out. All figures are CPU seconds."""

import argparse
import json
import math
import os
import pathlib
import sys
import tempfile

import measure
import numpy as np
import onnx
from models import Builder

WIDTH = 4
STEEPEST = 1.1
BUILD = pathlib.Path(__file__).resolve().parent.parent / "build"


def matmul(b, x):
    return b.op("MatMul", x, b.parameter(WIDTH, WIDTH, std=WIDTH**-0.5))


def chain(b, x, nodes):
    for i in range(nodes):
        x = b.op("Relu" if i % 2 else "Sigmoid", x)
    return x


def matmuls(b, x, nodes):
    for _ in range(nodes):
        x = matmul(b, x)
    return x


def movement(b, x, nodes):
    x = matmul(b, x)
    for _ in range(nodes - 1):
        x = b.op("Transpose", x)
    return x


def shared_bias(b, x, nodes):
    weight, bias = b.parameter(WIDTH, WIDTH, std=WIDTH**-0.5), b.parameter(WIDTH)
    for _ in range(nodes):
        x = b.op("Gemm", x, weight, bias)
    return x


def branches(b, x, nodes):
    return b.op("Concat", *[b.op("Relu", matmul(b, x)) for _ in range(nodes // 2)], axis=1)


def residual(b, x, nodes):
    made = []
    for _ in range(nodes // 3):
        y = b.op("MatMul", x, b.parameter(WIDTH, WIDTH, std=0.001))
        x = b.op("Add", x, b.op("Relu", y))
        made.append(x)
    return b.op("Sum", *made)


def ifs(b, x, nodes):
    value = onnx.helper.make_tensor_value_info
    condition = b.constant(np.array(True))
    for i in range(nodes):

        def body(kind):
            node = onnx.helper.make_node(kind, [x], [f"inner_{kind}_{i}"])
            return onnx.helper.make_graph([node], kind, [], [value(f"inner_{kind}_{i}", 1, None)])

        x = b.op("If", condition, then_branch=body("Relu"), else_branch=body("Neg"))
    return matmul(b, x)


SHAPES = {f.__name__: f for f in (chain, matmuls, movement, shared_bias, branches, residual, ifs)}


def make(shape, nodes):
    b = Builder()
    y = SHAPES[shape](b, "x", nodes)
    b.op("Identity", y, output="y")
    return b.finish(shape, [("x", 1, [WIDTH, WIDTH])], [("y", None)])


def own_seconds(arguments, folder):
    """CPU seconds of a run of detent: in all, and without those inside of the runtime."""
    library = os.environ.get("DETENT_ONNXRUNTIME") or str(BUILD / "libonnxruntime.so")
    env = dict(os.environ, TIMED_RUNTIME_LIBRARY=os.path.realpath(library), TIMED_RUNTIME_SECONDS=str(folder / "seconds"))
    env["DETENT_ONNXRUNTIME"] = str(BUILD / "bench/libbench_timed_runtime.so")
    run = measure.measure([str(BUILD / "detent"), *map(str, arguments)], env)
    return run["cpu_s"], run["cpu_s"] - float((folder / "seconds").read_text())


def grow(shape, all_nodes, limit, folder):
    """A row for each number of nodes, as far as the runtime follows within the limit."""
    rows = []
    for nodes in all_nodes:
        model = folder / "model.onnx"
        onnx.save(make(shape, nodes), model)
        inspect = own_seconds(["inspect", model], folder)
        data = ["--calibration-data", folder / "data", "--work-dir", folder, "--threads", 1]
        quantize = own_seconds(["quantize", model, "-o", folder / "out.onnx", "--preset", "plain", *data], folder)
        rows.append({"shape": shape, "nodes": nodes, "inspect": inspect, "quantize": quantize})
        print(f"{shape:10} {nodes:7} {inspect[0]:9.2f} {inspect[1]:9.2f} {quantize[0]:9.2f} {quantize[1]:9.2f}", flush=True)
        following = [n for n in all_nodes if n > nodes]
        if following and (quantize[0] - quantize[1]) * (following[0] / nodes) ** 2 > limit:
            print(f"{shape:10} {following[0]:7} left out: the runtime would take too long")
            break
    return rows


def exponent(rows, command):
    few, many = rows[-2:]
    return math.log(many[command][1] / few[command][1]) / math.log(many["nodes"] / few["nodes"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", choices=[*SHAPES, []], help="default: all")
    parser.add_argument("--nodes", nargs="+", type=int, default=[1000, 10000, 100000])
    parser.add_argument("--seconds", type=float, default=300, help="that the runtime may take for one model")
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    rows, steep = [], []
    print("shape        nodes   inspect       own  quantize       own")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "data").mkdir()
        for i in range(2):
            sample = np.random.default_rng(i).standard_normal((WIDTH, WIDTH), dtype=np.float32)
            np.save(folder / "data" / f"{i}.npy", sample)
        for shape in given.shapes or SHAPES:
            grown = grow(shape, given.nodes, given.seconds, folder)
            rows += grown
            for command in ("inspect", "quantize"):
                if len(grown) < 2:
                    continue
                found = exponent(grown, command)
                print(f"{shape:10} {command}: own time grows with nodes ** {found:.2f}")
                if found > STEEPEST:
                    steep.append(f"{shape} {command}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    if steep:
        sys.exit(f"faster than nodes ** {STEEPEST}: {', '.join(steep)}")


if __name__ == "__main__":
    main()
