"""Valid models at random: bodies in bodies, functions, values and weights that many nodes read, names used again. Strange
ones have If nodes whose condition is known, weights without elements, and sparse ones."""

import random

import numpy as np
import onnx
from onnx import helper, numpy_helper
from seed_models import BOOL, INT64, value

WIDTH = 8


class Graph:
    """Nodes of one graph, and the values [1, WIDTH] that stand in it or around it."""

    def __init__(self, rng: random.Random, around: list[str], prefix: str) -> None:
        self.rng, self.values, self.prefix, self.made = rng, list(around), prefix, []
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.sparse: list[onnx.SparseTensorProto] = []

    def add(self, op_type: str, inputs: list[str], outputs: int = 1, name: str = "", **attributes: object) -> str:
        made = [f"{self.prefix}{len(self.nodes)}_{o}" for o in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, made, name or f"{op_type}{len(self.nodes)}", **attributes))
        self.values.append(made[0])
        self.made.append(made[0])
        return made[0]

    def any(self) -> str:
        return self.rng.choice(self.values[-6:] if self.rng.random() < 0.7 else self.values)

    def weight(self) -> str:
        name = f"{self.prefix}w{len(self.initializers)}"
        array = np.random.default_rng(self.rng.randrange(1 << 30)).normal(0, 0.3, (WIDTH, WIDTH)).astype(np.float32)
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def empty_weight(self, *shape: int) -> str:
        name = f"{self.prefix}e{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.zeros(shape, np.float32), name))
        return name

    def sparse_weight(self) -> str:
        name = f"{self.prefix}s{len(self.sparse)}"
        places = np.array(sorted(self.rng.sample(range(WIDTH * WIDTH), WIDTH)), np.int64)
        values = numpy_helper.from_array(np.linspace(-1, 1, WIDTH, dtype=np.float32), name)
        self.sparse.append(helper.make_sparse_tensor(values, numpy_helper.from_array(places, name + "_at"), [WIDTH, WIDTH]))
        return name


class Maker:
    def __init__(self, rng: random.Random, strange: bool = False) -> None:
        self.rng, self.functions, self.bodies, self.strange = rng, [], 0, strange
        self.main = Graph(rng, ["x"], "v")
        self.weights = [self.main.weight() for _ in range(2)]

    def body(self, around: Graph, depth: int, inputs: list[str]) -> Graph:
        self.bodies += 1
        # Names of one body may be those of another: they are in no common graph.
        prefix = self.rng.choice(["b", f"b{self.bodies}_"]) + f"d{depth}_"
        graph = Graph(self.rng, [*around.values, *inputs], prefix)
        self.fill(graph, depth, self.rng.randrange(1, 4))
        graph.add("Identity", [graph.any()])
        return graph

    def fill(self, graph: Graph, depth: int, count: int) -> None:
        for _ in range(count):
            kinds = [self.product, self.product, self.shared, self.elementwise, self.call]
            if self.strange:
                kinds += [self.nothing, self.sparse]
            self.rng.choice(kinds + ([self.branch, self.loop, self.scan] if depth < 3 else []))(graph, depth)

    def product(self, graph: Graph, _: int) -> None:
        weight = self.rng.choice(self.weights) if self.rng.random() < 0.6 else graph.weight()
        graph.add("MatMul", [graph.any(), weight])

    def shared(self, graph: Graph, _: int) -> None:
        """A weight that others read as it is, read turned or as a value."""
        weight = self.rng.choice(self.weights)
        if self.rng.random() < 0.5:
            turned = graph.add("Transpose", [weight], perm=[1, 0])
            graph.values.pop()
            graph.add("MatMul", [graph.any(), turned])
        else:
            graph.add("Gemm", [graph.any(), weight], transB=self.rng.randrange(2))

    def nothing(self, graph: Graph, _: int) -> None:
        """Two products by way of a value without elements: zeros."""
        inner = graph.add("MatMul", [graph.any(), graph.empty_weight(WIDTH, 0)])
        graph.values.pop()
        graph.made.pop()
        zeros = graph.add("MatMul", [inner, graph.empty_weight(0, WIDTH)])
        graph.add("Add", [zeros, graph.any()])

    def sparse(self, graph: Graph, depth: int) -> None:
        if depth == 0:
            graph.add("MatMul", [graph.any(), graph.sparse_weight()])

    def elementwise(self, graph: Graph, _: int) -> None:
        if self.rng.random() < 0.5:
            graph.add(self.rng.choice(["Relu", "Tanh", "Sigmoid", "Neg"]), [graph.any()])
        else:
            graph.add(self.rng.choice(["Add", "Mul", "Sub"]), [graph.any(), graph.any()])

    def call(self, graph: Graph, _: int) -> None:
        if not self.functions or self.rng.random() < 0.3:
            name = f"F{len(self.functions)}"
            inner = [helper.make_node("Tanh", ["p"], ["t"], f"{name}n"), helper.make_node("Add", ["t", "p"], ["q"], f"{name}m")]
            if self.functions and self.rng.random() < 0.5:
                inner[1] = helper.make_node(self.functions[-1].name, ["t"], ["q"], f"{name}c", domain="own")
            opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
            self.functions.append(helper.make_function("own", name, ["p"], ["q"], inner, opsets))
        graph.add(self.rng.choice(self.functions).name, [graph.any()], domain="own")

    def graph_of(self, body: Graph, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> onnx.GraphProto:
        return helper.make_graph(body.nodes, "body", inputs, outputs, body.initializers)

    def condition(self, graph: Graph) -> str:
        """An input of the model, or what is known before it runs."""
        kind = self.rng.randrange(4) if self.strange else 0
        if kind < 2:  # noqa: PLR2004
            return "c"
        known = helper.make_tensor(f"{graph.prefix}k{len(graph.nodes)}", BOOL, [], [self.rng.random() < 0.5])
        if kind == 2:  # noqa: PLR2004
            graph.initializers.append(known)
        else:
            graph.nodes.append(helper.make_node("Constant", [], [known.name], known.name, value=known))
        return known.name

    def branch(self, graph: Graph, depth: int) -> None:
        branches = [self.body(graph, depth + 1, []) for _ in range(2)]
        graphs = [self.graph_of(b, [], [value(b.made[-1], None)]) for b in branches]
        graph.add("If", [self.condition(graph)], then_branch=graphs[0], else_branch=graphs[1])

    def loop(self, graph: Graph, depth: int) -> None:
        state, number = f"state{depth}_{self.bodies}", f"i{depth}_{self.bodies}"
        body = self.body(graph, depth + 1, [state])
        going = f"go{depth}_{number}"
        body.nodes.append(helper.make_node("Identity", [going], [going + "_on"], "on"))
        inputs = [value(number, [], INT64), value(going, [], BOOL), value(state, [1, WIDTH])]
        outputs = [value(going + "_on", [], BOOL), value(body.made[-1], [1, WIDTH])]
        graph.add("Loop", ["n", "", graph.any()], body=self.graph_of(body, inputs, outputs))

    def scan(self, graph: Graph, depth: int) -> None:
        state, row = f"kept{depth}_{self.bodies}", f"row{depth}_{self.bodies}"
        body = self.body(graph, depth + 1, [state])
        body.nodes.append(helper.make_node("Add", [row, body.made[-1]], [row + "_out"], "out"))
        inputs = [value(state, [1, WIDTH]), value(row, [WIDTH])]
        outputs = [value(body.made[-1], [1, WIDTH]), value(row + "_out", [1, WIDTH])]
        graph.add("Scan", [graph.any(), graph.any()], 2, body=self.graph_of(body, inputs, outputs), num_scan_inputs=1)

    def model(self) -> onnx.ModelProto:
        self.fill(self.main, 0, self.rng.randrange(3, 8))
        self.product(self.main, 0)
        last = self.main.made[-1]
        ends = [last, *(v for v in self.main.made[:-1] if self.rng.random() < 0.15)]
        counts = [helper.make_tensor("n", INT64, [], [2])]
        inputs = [value("x", [1, WIDTH]), value("c", [], BOOL)]
        outputs, constants = [value(e, None) for e in ends], [*self.main.initializers, *counts]
        graph = helper.make_graph(self.main.nodes, "g", inputs, outputs, constants, sparse_initializer=self.main.sparse)
        opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid("own", 1)] if self.functions else [])]
        return helper.make_model(graph, ir_version=8, functions=self.functions, opset_imports=opsets)


def random_model(rng: random.Random, strange: bool = False) -> onnx.ModelProto:
    return Maker(rng, strange).model()
