"""Models with bodies of If, Loop and Scan, and samples for them."""

from collections.abc import Iterator

import graphs
import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WIDTH = 16


def info(name: str, kind: int = FLOAT, shape: list | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


class Body(graphs.Builder):
    """Names in it are its own unless they are made unique by `prefix`: bodies of one model often share them."""

    def __init__(self, seed: int, prefix: str = "") -> None:
        super().__init__(seed)
        self.prefix = prefix

    def layer(self, x: str, name: str, activation: str = "Relu") -> str:
        weight = self.weight(f"{self.prefix}{name}.w", WIDTH, WIDTH, scale=0.3)
        return self.add(activation, self.add("MatMul", x, weight, name=f"{self.prefix}{name}"), name=f"{self.prefix}{name}.act")

    def graph(self, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, name, inputs, outputs, self.initializers)


def branches(seen: str, inner: tuple[onnx.GraphProto, onnx.GraphProto] | None = None) -> dict[str, onnx.GraphProto]:
    """Two of them, with the same names in both."""
    made = {}
    for seed, branch in enumerate(("then", "else")):
        b = Body(seed + 10)
        y = b.layer(b.layer(seen, "first"), "second")
        if inner and branch == "then":
            y = b.add("Add", y, b.add("If", "deep", name="inner", then_branch=inner[0], else_branch=inner[1]))
        y = b.add("MatMul", y, b.weight("last.w", WIDTH, WIDTH), name="last")
        made[f"{branch}_branch"] = b.graph(branch, [], [info(y)])
    return made


def with_if(nested: bool = False) -> onnx.ModelProto:
    b = graphs.Builder(1)
    seen = b.add("Relu", b.add("MatMul", "x", b.weight("w", WIDTH, WIDTH), name="before"))
    inner = None
    if nested:
        parts = []
        for seed, name in enumerate(("shallow", "steep")):
            part = Body(seed + 20, "inner.")
            parts.append(part.graph(name, [], [info(part.layer(seen, "only"))]))
        inner = tuple(parts)
    y = b.add("If", "flag", name="choose", **branches(seen, inner))
    y = b.add("MatMul", y, b.weight("w2", WIDTH, WIDTH), name="after")
    inputs = {"x": (FLOAT, ["N", WIDTH]), "flag": (BOOL, [])} | ({"deep": (BOOL, [])} if nested else {})
    model = b.model(inputs, [y])
    model.graph.output[0].CopyFrom(info(y, FLOAT, ["N", WIDTH]))
    return model


def with_loop() -> onnx.ModelProto:
    """h = Tanh(h W + seen U), and the sum of the second as a scan output."""
    b = graphs.Builder(2)
    seen = b.add("Relu", b.add("MatMul", "x", b.weight("w", WIDTH, WIDTH), name="before"))
    body = Body(3)
    mixed = body.add("Add", body.layer("h", "carried", "Tanh"), body.layer(seen, "captured"), name="mixed")
    step = body.add("Tanh", mixed, name="step")
    row = body.add("MatMul", step, body.weight("row.w", WIDTH, 4), name="row")
    body.nodes.append(helper.make_node("Identity", ["go"], ["going"]))
    infos = [info("i", INT64, []), info("go", BOOL, []), info("h", FLOAT, ["N", WIDTH])]
    graph = body.graph("body", infos, [info("going", BOOL, []), info(step), info(row)])
    h = b.add("Loop", "times", b.constant("yes", True, np.bool_), seen, body=graph, name="loop", count=2)
    y = b.add("MatMul", h, b.weight("w2", WIDTH, WIDTH), name="after")
    model = b.model({"x": (FLOAT, ["N", WIDTH]), "times": (INT64, [])}, [y])
    model.graph.output[0].CopyFrom(info(y, FLOAT, ["N", WIDTH]))
    model.graph.output.append(info("loop.out.1", FLOAT, ["T", "N", 4]))
    return model


def with_scan(several: bool = False) -> onnx.ModelProto:
    """A recurrent net along the second axis; with `several`, next to another one that reads from the end, a count, and a
    value from around the body."""
    b = graphs.Builder(4)
    body = Body(5)
    mixed = body.add("Add", body.layer("step", "input"), body.layer("h", "state"), name="mixed")
    h = body.add("Sigmoid", mixed, name="new")
    out = body.add("MatMul", h, body.weight("out.w", WIDTH, WIDTH), name="out")
    row = [FLOAT, ["N", WIDTH]]
    ins, outs = [info("h", *row), info("step", *row)], [info(h), info(out)]
    given, axes, shapes = ["h0", "x"], [1], {"h0": row, "x": (FLOAT, ["N", "T", WIDTH])}
    more: dict[str, object] = {}
    if several:
        seen = b.add("Relu", b.add("MatMul", "h0", b.weight("w", WIDTH, WIDTH), name="before"))
        both = body.add("Add", "back", "c", name="both")
        c = body.add("Tanh", body.add("Add", body.layer(both, "second", "Tanh"), seen, name="with"), name="c2")
        count = body.add("Add", "n", body.constant("one", 1, np.int64), name="count")
        ins = [info("n", INT64, []), info("h", *row), info("c", *row), info("step", *row), info("back", *row)]
        outs = [info(count, INT64, []), info(h), info(c), info(out), info(body.add("Identity", c))]
        given, axes = [b.constant("zero", 0, np.int64), "h0", seen, "x", "z"], [1, 1]
        shapes["z"] = (FLOAT, ["T", "N", WIDTH])
        more = {"scan_input_directions": [0, 1], "scan_output_directions": [0, 1]}
        more["scan_input_axes"] = [1, 0]
    attributes = {"num_scan_inputs": len(axes), "scan_input_axes": axes, "scan_output_axes": axes} | more
    b.add("Scan", *given, body=body.graph("body", ins, outs), name="scan", count=len(outs), **attributes)
    y = b.add("MatMul", "scan.out.3" if several else "scan.out.1", b.weight("w2", WIDTH, WIDTH), name="after")
    if several:
        y = b.add("Add", y, "scan.out.4", name="sum")
    model = b.model(shapes, [y])
    model.graph.output[0].CopyFrom(info(y, FLOAT, ["N", "T", WIDTH]))
    if several:
        model.graph.output.append(info("scan.out", INT64, []))
    return model


def samples(kind: str, count: int = 8) -> list[graphs.Sample]:
    rng = np.random.default_rng(6)
    made = []
    for i in range(count):
        x = rng.normal(size=(3, WIDTH)).astype(np.float32)
        if kind in ("Scan", "several"):
            made.append({"h0": x, "x": rng.normal(size=(3, 4 + i % 3, WIDTH)).astype(np.float32)})
            if kind == "several":
                made[-1]["z"] = rng.normal(size=(4 + i % 3, 3, WIDTH)).astype(np.float32)
        elif kind == "Loop":
            made.append({"x": x, "times": np.array(1 + i % 4)})
        else:
            deep = {"deep": np.array(i % 4 < 2)} if kind == "nested" else {}
            made.append({"x": x, "flag": np.array(i % 2 == 0)} | deep)
    return made


def correlated(kind: str, count: int, seed: int = 8) -> list[graphs.Sample]:
    """Rows that are mixtures of a few: what rounding can make use of."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(9).normal(size=(4, WIDTH))
    made = samples(kind, count)
    for sample in made:
        for name, values in sample.items():
            if values.ndim >= 2:
                noise = rng.normal(size=values.shape)
                sample[name] = (rng.normal(size=(*values.shape[:-1], 4)) @ mix + 0.3 * noise).astype(np.float32)
    return made


MODELS = {
    "If": with_if,
    "nested": lambda: with_if(nested=True),
    "Loop": with_loop,
    "Scan": with_scan,
    "several": lambda: with_scan(several=True),
}
PRODUCTS = {"If": 8, "nested": 10, "Loop": 5, "Scan": 4, "several": 6}


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes_of(attribute.g)
