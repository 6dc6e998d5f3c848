"""What the small graphs share: how one is put together, and what a finished one consists of."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "networks"), str(ROOT / "tests" / "fuzz")]

import graphs  # noqa: E402

FLOAT, FLOAT16, INT64, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
Sample = dict[str, np.ndarray]
COUNT = 8  # samples, so few that most are judged


@dataclasses.dataclass
class Case:
    """A model with samples. `varies`: sizes of outputs hang on values, or random numbers are drawn, so that detent judges by
    shared decisions and a script that runs the file cannot."""

    model: onnx.ModelProto
    samples: list[Sample]
    varies: bool = False
    decoder: bool = False


class Graph(graphs.Builder):
    """With weights that suit their number of inputs, so that values keep their size from layer to layer."""

    def fan(self, *shape: int, inputs: int | None = None) -> str:
        inputs = inputs or (int(np.prod(shape[1:])) if len(shape) > 2 else shape[0])
        return self.weight(f"w{len(self.initializers)}", *shape, scale=1 / np.sqrt(inputs))

    def values(self, array: object, dtype: type = np.float32) -> str:
        return self.constant(f"c{len(self.initializers)}", array, dtype)

    def ints(self, *values: int) -> str:
        return self.values(list(values), np.int64)

    def product(self, x: str, inner: int, outer: int, bias: bool = False) -> str:
        y = self.add("MatMul", x, self.fan(inner, outer))
        return self.add("Add", y, self.weight(f"b{len(self.initializers)}", outer)) if bias else y

    def conv(self, x: str, inner: int, outer: int, kernel: int = 3, rank: int = 2, **more: object) -> str:
        group = int(more.get("group", 1))
        pads = more.pop("pads", [kernel // 2] * 2 * rank)
        weight = self.fan(outer, inner // group, *[kernel] * rank)
        return self.add("Conv", x, weight, self.weight(f"b{len(self.initializers)}", outer), pads=pads, **more)

    def relu(self, x: str) -> str:
        return self.add("Relu", x)


def normal(shape: list[int], seed: int = 3, name: str = "x", count: int = COUNT) -> list[Sample]:
    random = np.random.default_rng(seed)
    return [{name: random.normal(size=shape).astype(np.float32)} for _ in range(count)]


def case(b: graphs.Builder, shape: list[int], outputs: list[str], opset: int = 17, free: bool = False, **more: object) -> Case:
    """Of one input; `free`: its first axis is dynamic."""
    if any(node.domain for node in b.nodes):
        infos = [helper.make_tensor_value_info("x", FLOAT, shape)], [helper.make_tensor_value_info(o, FLOAT, None) for o in outputs]
        graph = helper.make_graph(b.nodes, "generated", *infos, b.initializers)
        domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=domains)
    else:
        model = b.model({"x": (FLOAT, ["N" if free else shape[0], *shape[1:]])}, outputs, opset)
    model.ir_version = 8 if opset < 19 else 9 if opset < 21 else 10
    return Case(model, normal(shape), **more)


def in_float16(made: Case) -> Case:
    """As if the exporter had written float16: inputs, constants and results."""
    from net import Network
    from net import in_float16 as converted

    half = converted(Network("", made.model, made.samples, []))
    return Case(half.model, half.samples)


def tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array), name)
