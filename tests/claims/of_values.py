"""Small graphs in which something else than a layer is special: who reads a weight, bodies, outputs, masks, random numbers."""

import functools
import random
from collections.abc import Callable

import bodies
import numpy as np
import random_graphs
from case import FLOAT, INT64, Case, Graph, case, tensor
from onnx import helper


def shared(first: str, second: str) -> Case:
    """One square weight that is read along different axes."""
    b = Graph(20)
    weight = b.constant("shared", b.rng.normal(0, 0.18, (32, 32)) * np.exp(b.rng.normal(0, 0.7, (32, 1))))

    def read(x: str, how: str) -> str:
        if how == "Transpose":
            return b.add("MatMul", x, b.add("Transpose", weight, perm=[1, 0]))
        return b.add("MatMul", x, weight) if how == "MatMul" else b.add("Gemm", x, weight, transB=int(how == "Gemm, turned"))

    y = read(b.relu(read("x", first)), second)
    return case(b, [4, 32], [b.add("Gemm", y, b.fan(32, 8), b.weight("gb", 8))])


def autoencoder_of_images() -> Case:
    b = Graph(21)
    weight = b.fan(8, 3, 3, 3)
    x = b.relu(b.add("Conv", "x", weight, pads=[1] * 4, strides=[2, 2]))
    y = b.add("ConvTranspose", x, weight, pads=[1] * 4, strides=[2, 2], output_padding=[1, 1])
    return case(b, [1, 3, 16, 16], [y])


def behind(op: str) -> Case:
    """A weight that comes through another node."""
    b = Graph(22)
    raw = b.rng.normal(0, 0.18, (32, 32)).astype(np.float32)
    if op == "Cast":
        weight = b.add("Cast", b.constant("raw", raw, np.float16), to=FLOAT)
    elif op == "Reshape":
        weight = b.add("Reshape", b.constant("raw", raw.reshape(16, 64)), b.ints(32, 32))
    elif op == "Mul":
        weight = b.add("Mul", b.constant("raw", raw), b.values(b.rng.uniform(0.5, 2, (1, 32))))
    elif op == "Constant":
        b.nodes.append(helper.make_node("Constant", [], ["raw"], name="raw", value=tensor("v", raw)))
        weight = "raw"
    else:
        weight = b.add(op, b.constant("raw", raw), **({"perm": [1, 0]} if op == "Transpose" else {}))
    y = b.relu(b.add("MatMul", "x", weight, name="first"))
    return case(b, [1, 6, 32], [b.product(y, 32, 16, bias=True)])


def computed(op: str) -> Case:
    """A weight that is computed of what it multiplies, as dynamic convolutions have it."""
    b = Graph(22)
    is_conv = op.startswith("Conv")
    shape = (8, 8, 3, 3) if is_conv else (8, 8)
    more = {"pads": [1] * 4} if is_conv else {}
    x = b.relu(b.add(op, "x", b.fan(*shape), **more))
    scale = b.add("Sigmoid", b.add("ReduceMean", x, keepdims=0))
    x = b.add(op, x, b.add("Mul", b.fan(*shape), scale), **more)
    return case(b, [1, 8, 8, 8] if is_conv else [6, 8], [b.add(op, b.add("Sin", b.relu(x)), b.fan(*shape), **more)])


def in_body(kind: str) -> Case:
    return Case(bodies.MODELS[kind](), bodies.samples(kind, 6))


def weights_outside_of_branches() -> Case:
    """A merged decoder's form: both branches read a table and a weight from around them, and have biases of their own."""
    b = Graph(23)
    b.weight("table", 48, 16)
    b.fan(16, 16)
    outer = b.initializers[-1].name
    branches = {}
    for branch in ("then", "else"):
        inner = bodies.Body(24, f"{branch}.")
        y = inner.add("Gather", "table", "ids", name=f"{branch}.look")
        y = inner.add("MatMul", y, outer, name=f"{branch}.first")
        y = inner.add("Relu", inner.add("Add", y, inner.weight(f"{branch}.b", 16), name=f"{branch}.add"), name=f"{branch}.relu")
        if branch == "then":
            y = inner.add("MatMul", y, inner.weight("then.own", 16, 16), name="then.second")
        y = inner.add("MatMul", y, inner.add("Transpose", "table", perm=[1, 0], name=f"{branch}.turn"), name=f"{branch}.head")
        branches[f"{branch}_branch"] = inner.graph(branch, [], [bodies.info(y)])
    y = b.add("If", "flag", name="choose", **branches)
    model = b.model({"ids": (INT64, [1, 5]), "flag": (bodies.BOOL, [])}, [y])
    model.graph.output[0].CopyFrom(bodies.info(y, FLOAT, None))
    made = np.random.default_rng(25)
    return Case(model, [{"ids": made.integers(0, 48, (1, 5)), "flag": np.array(i % 2 == 0)} for i in range(8)])


def boxes_and_scores(scale: float) -> Case:
    """One output that holds both, as YOLO's exporters write it."""
    b = Graph(26)
    x = b.conv("x", 3, 16, strides=[2, 2])
    x = b.add("Mul", x, b.add("Sigmoid", x))
    boxes = b.add("Reshape", b.conv(x, 16, 4, 1), b.ints(1, 4, -1))
    boxes = b.add("Add", b.add("Mul", boxes, b.values(scale / 10)), b.values(b.rng.uniform(0, scale / 2, (1, 4, 64))))
    scores = b.add("Sigmoid", b.add("Reshape", b.conv(x, 16, 8, 1), b.ints(1, 8, -1)))
    return case(b, [1, 3, 16, 16], [b.add("Concat", boxes, scores, axis=1)])


def chosen(how: str) -> Case:
    """Outputs whose number of elements hangs on values."""
    b = Graph(27)
    x = b.relu(b.product("x", 16, 32))
    if how == "TopK":
        scores = b.add("Reshape", b.product(x, 32, 1), b.ints(-1))
        b.add("TopK", scores, b.ints(5), count=2, name="top")
        return case(b, [24, 16], ["top.out", b.product(b.add("Gather", x, "top.out.1"), 32, 8)], varies=True)
    if how == "NonZero":
        best = b.add("ReduceMax", b.product(x, 32, 4), axes=[1], keepdims=0)
        rows = b.add("Reshape", b.add("NonZero", b.relu(best)), b.ints(-1))
        return case(b, [24, 16], [b.product(b.add("Gather", x, rows), 32, 8)], varies=True)
    scores = b.add("Sigmoid", b.add("Transpose", b.add("Unsqueeze", b.product(x, 32, 3), b.ints(0)), perm=[0, 2, 1]))
    raw = b.add("Unsqueeze", b.product(x, 32, 4), b.ints(0))
    boxes = b.add("Add", b.add("Mul", raw, b.values(4.0)), b.values(b.rng.uniform(0, 100, (1, 24, 4))))
    limits = [b.ints(10), b.values([0.5]), b.values([0.6])]
    picked = b.add("NonMaxSuppression", boxes, scores, *limits)
    rows = b.add("Reshape", b.add("Slice", picked, b.ints(2), b.ints(3), b.ints(1)), b.ints(-1))
    return case(b, [24, 16], [b.add("Gather", boxes, rows, axis=1), scores], varies=True)


def masked(low: float) -> Case:
    b = Graph(28)
    heads = [b.add("Reshape", b.product("x", 32, 32), b.ints(1, -1, 2, 16)) for _ in range(3)]
    q, k, v = (b.add("Transpose", h, perm=p) for h, p in zip(heads, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True))
    mask = np.triu(np.full((1, 1, 8, 8), low), 1) if np.isfinite(low) else np.where(np.tri(8)[None, None] > 0, 0, low)
    weights = b.add("Softmax", b.add("Add", b.add("MatMul", q, k), b.values(mask)))
    y = b.add("Reshape", b.add("Transpose", b.add("MatMul", weights, v), perm=[0, 2, 1, 3]), b.ints(1, -1, 32))
    return case(b, [1, 8, 32], [b.product(y, 32, 16)])


def drawn(op: str) -> Case:
    """Random numbers in the model."""
    b = Graph(29)
    x = b.relu(b.product("x", 16, 32))
    if op == "Bernoulli":
        x = b.add("Mul", x, b.add("Bernoulli", b.add("Sigmoid", x), seed=1.0))
    elif op == "RandomNormalLike":
        x = b.add("Add", x, b.add("RandomNormalLike", x, scale=0.5))
    else:
        x = b.add("Dropout", x, b.values(0.3), b.values(True, np.bool_))
    return case(b, [4, 16], [b.product(x, 32, 8)], varies=True)


def integers_in_the_model() -> Case:
    """Shapes, positions and indices among the layers."""
    b = Graph(30)
    x = b.conv("x", 3, 8)
    size = b.add("Cast", b.add("Slice", b.add("Shape", x), b.ints(2), b.ints(4)), to=FLOAT)
    size = b.add("Cast", b.add("Floor", b.add("Mul", size, b.values([1.5, 1.5]))), to=INT64)
    size = b.add("Concat", b.ints(1, 8), size, axis=0)
    return case(b, [1, 3, 12, 12], [b.conv(b.add("Resize", x, "", "", size, mode="linear"), 8, 4)])


def several_outputs() -> Case:
    """Of very different size, one of them a Cast's, one before a Relu."""
    b = Graph(31)
    x = b.conv("x", 3, 8)
    great = b.add("Mul", b.conv(b.relu(x), 8, 4), b.values(500.0))
    small = b.add("Sigmoid", b.add("Sub", b.conv(b.relu(x), 8, 4), b.values(4.0)))
    return case(b, [1, 3, 12, 12], [x, great, small, b.add("Cast", small, to=10)])


def random_graph(seed: int) -> Case:
    model = random_graphs.random_model(random.Random(seed))
    made = np.random.default_rng(seed)
    samples = []
    for i in range(6):
        sample = {}
        for value in model.graph.input:
            kind = value.type.tensor_type.elem_type
            shape = [d.dim_value or 2 for d in value.type.tensor_type.shape.dim]
            values = made.normal(size=shape).astype(np.float32)
            sample[value.name] = values if kind == FLOAT else np.array(i % 2 == 0) if kind == bodies.BOOL else np.array(1 + i % 3)
        samples.append(sample)
    return Case(model, samples)


P = functools.partial
GRAPHS: dict[str, Callable[[], Case]] = {
    "Gemm, turned and not": P(shared, "Gemm, turned", "Gemm"),
    "MatMul and Gemm, turned": P(shared, "MatMul", "Gemm, turned"),
    "MatMul and Transpose": P(shared, "MatMul", "Transpose"),
    "Conv and ConvTranspose": autoencoder_of_images,
    **{f"weight behind {op}": P(behind, op) for op in ("Identity", "Cast", "Reshape", "Transpose", "Mul", "Constant")},
    **{f"computed weight of {op}": P(computed, op) for op in ("Conv", "ConvTranspose", "Gemm", "MatMul")},
    **{f"body of {kind}": P(in_body, kind) for kind in ("If", "nested", "Loop", "Scan", "several")},
    "weights outside of branches": weights_outside_of_branches,
    "boxes to 600": P(boxes_and_scores, 600.0),
    "boxes to 8": P(boxes_and_scores, 8.0),
    **{f"chosen by {how}": P(chosen, how) for how in ("TopK", "NonZero", "NonMaxSuppression")},
    "mask of -1e9": P(masked, -1e9),
    "mask of -inf": P(masked, -np.inf),
    **{f"drawn by {op}": P(drawn, op) for op in ("Bernoulli", "RandomNormalLike", "Dropout")},
    "sizes of Resize": integers_in_the_model,
    "several outputs": several_outputs,
    **{f"random {seed}": P(random_graph, seed) for seed in (1, 2, 3, 5, 8)},
}
