#!/usr/bin/env python3
"""How detent's time grows with the number of nodes of a model.

graph_scale.py make SHAPE NODES OUT.onnx"""

import argparse

import numpy as np
import onnx
from models import Builder

WIDTH = 4


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
    for _ in range(nodes - 1):
        x = b.op("Transpose", x)
    return matmul(b, x)


def branches(b, x, nodes):
    return b.op("Concat", *[b.op("Relu", matmul(b, x)) for _ in range(nodes // 2)], axis=1)


def residual(b, x, nodes):
    made = []
    for _ in range(nodes // 3):
        x = b.op("Add", x, b.op("Relu", matmul(b, x)))
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


SHAPES = {f.__name__: f for f in (chain, matmuls, movement, branches, residual, ifs)}


def make(shape, nodes):
    b = Builder()
    y = SHAPES[shape](b, "x", nodes)
    b.op("Identity", y, output="y")
    return b.finish(shape, [("x", 1, [WIDTH, WIDTH])], [("y", None)])


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("make"); p.add_argument("shape"); p.add_argument("nodes", type=int); p.add_argument("out")
    a = p.parse_args()
    onnx.save(make(a.shape, a.nodes), a.out)
