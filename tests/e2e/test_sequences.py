"""Sequences and optionals among the values, in bodies and through them: each form is a file that loads, as near as without them."""

from collections.abc import Callable

import bodies
import graphs
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper
from support import Path

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WIDTH = bodies.WIDTH


def sequence(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, FLOAT, None)


def concatenated(b: graphs.Builder, value: str) -> str:
    return b.add("ConcatFromSequence", value, axis=0)


def looped(b: graphs.Builder, inputs: list[onnx.ValueInfoProto], step: Callable[..., list[tuple[str, bool]]], *given: str) -> str:
    """The last of a Loop's states after three steps; `step` tells each new state, and whether it is a sequence."""
    body = bodies.Body(5, "body.")
    made = step(body, *(info.name for info in inputs))
    outputs = [bodies.info(body.add("Identity", "goes"), BOOL, [])]
    outputs += [sequence(name) if is_sequence else bodies.info(name) for name, is_sequence in made]
    graph = body.graph("body", [bodies.info("turn", INT64, []), bodies.info("goes", BOOL, []), *inputs], outputs)
    turns, goes = b.constant("turns", 3, np.int64), b.constant("goes_on", True, np.bool_)
    names = [f"state{i}" for i in range(len(made))]
    b.nodes.append(helper.make_node("Loop", [turns, goes, *given], names, "loop", body=graph))
    return names[-1]


def in_a_state(b: graphs.Builder, x: str) -> str:
    def step(body: bodies.Body, value: str, kept: str) -> list[tuple[str, bool]]:
        value = body.layer(value, "inner")
        return [(value, False), (body.add("SequenceInsert", kept, value), True)]

    inputs = [bodies.info("value", FLOAT, ["N", WIDTH]), sequence("kept")]
    return concatenated(b, looped(b, inputs, step, x, b.add("SequenceEmpty", dtype=FLOAT)))


def as_the_only_state(b: graphs.Builder, x: str) -> str:
    def step(body: bodies.Body, kept: str) -> list[tuple[str, bool]]:
        value = body.layer(body.add("SequenceAt", kept, body.constant("first", 0, np.int64)), "inner")
        return [(body.add("SequenceInsert", kept, value), True)]

    return concatenated(b, looped(b, [sequence("kept")], step, b.add("SequenceConstruct", x, x)))


def from_around(b: graphs.Builder, x: str) -> str:
    pieces = b.add("SplitToSequence", x, b.constant("two", 2, np.int64), axis=0)

    def step(body: bodies.Body, kept: str) -> list[tuple[str, bool]]:
        value = body.layer(body.add("SequenceAt", pieces, "turn"), "inner")
        return [(body.add("SequenceInsert", kept, value), True)]

    return concatenated(b, looped(b, [sequence("kept")], step, b.add("SequenceConstruct", x)))


def within_a_step(b: graphs.Builder, x: str) -> str:
    def step(body: bodies.Body, value: str) -> list[tuple[str, bool]]:
        both = body.add("ConcatFromSequence", body.add("SequenceConstruct", value, value), axis=1)
        return [(body.layer(body.add("Slice", both, *(body.constant(n, [i], np.int64) for n, i in SLICE)), "inner"), False)]

    return looped(b, [bodies.info("value", FLOAT, ["N", WIDTH])], step, x)


SLICE = (("begin", 4), ("end", 4 + WIDTH), ("axis", 1))


def out_of_branches(b: graphs.Builder, x: str) -> str:
    kept = b.add("SequenceConstruct", x)
    branches = {}
    for seed, name in enumerate(("then_branch", "else_branch")):
        body = bodies.Body(seed, f"{name}.")
        branches[name] = body.graph(name, [], [sequence(body.add("SequenceInsert", kept, body.layer(x, "inner")))])
    sum_of_all = b.add("ReduceSum", x, keepdims=0)
    return concatenated(b, b.add("If", b.add("Greater", sum_of_all, b.constant("zero", 0, np.float32)), **branches))


def without_bodies(b: graphs.Builder, x: str) -> str:
    one = b.constant("one", 1, np.int64)
    return b.add("SequenceAt", b.add("SequenceErase", b.add("SequenceConstruct", x, x, x), one), one)


def optional(b: graphs.Builder, x: str) -> str:
    return b.add("OptionalGetElement", b.add("Optional", x))


CASES = [in_a_state, as_the_only_state, from_around, within_a_step, out_of_branches, without_bodies, optional]


def model_with(make: Callable[[graphs.Builder, str], str]) -> onnx.ModelProto:
    b = graphs.Builder(1)
    x = b.add("MatMul", "x", b.weight("before.w", WIDTH, WIDTH, scale=0.3), name="before")
    x = b.add("MatMul", make(b, x), b.weight("after.w", WIDTH, WIDTH, scale=0.3), name="after")
    return b.model({"x": (FLOAT, ["N", WIDTH])}, [x])


@pytest.mark.sampled(14)
@pytest.mark.parametrize(
    ("options", "least"),
    [
        (["--preset", "none", "--float", "16"], 50),
        (["--weights-only", "--bits", "8", "--block-size", "16", "--float", "16"], 30),
        (["--weights-only", "--bits", "8", "--block-size", "16"], 30),
        (["--weights-only", "--bits", "8", "--block-size", "16", "--weights-form", "qdq"], 30),
        (["--preset", "plain", "--float", "16"], 15),
        (["--preset", "plain"], 15),
        (["--preset", "balanced"], 15),
        (["--activations", "dynamic"], 15),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_sequences(make: Callable[[graphs.Builder, str], str], options: list[str], least: float, tmp_path: Path) -> None:
    model, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model_with(make), model)
    rng = np.random.default_rng(3)
    samples = [{"x": rng.normal(size=(6, WIDTH)).astype(np.float32)} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    support.quantize(model, output, data, "--no-bench", *options)
    expected = support.outputs(support.load(model), samples)
    assert support.sqnr(expected, support.outputs(support.load(output), samples)) > least
