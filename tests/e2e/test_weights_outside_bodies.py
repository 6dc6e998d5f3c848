"""Products in bodies whose weights lie in the graph around load in every version of ONNX Runtime, and the file holds each once."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT
from onnx import TensorProto, helper, numpy_helper
from test_runtimes import run_all

WIDTH = 48
FORMS = {
    "plain": ["--preset", "plain"],
    "size": ["--optimize-for", "size"],
    "int16": ["--activation-type", "int16", "--optimize-for", "size"],
    "float16": ["--preset", "plain", "--float", "16"],
    "blocks-4": ["--weights-only", "--weights-form", "qdq", "--block-size", "16"],
    "blocks-8": ["--weights-only", "--weights-form", "qdq", "--bits", "8", "--block-size", "16"],
    "channel": ["--weights-only", "--weights-form", "qdq", "--bits", "8", "--block-size", "channel"],
}
READERS = {"MatMul": {}, "Gemm": {}, "transposed": {"transB": 1}}


def body(name: str, reader: str, inputs: list[onnx.ValueInfoProto], read: str) -> onnx.GraphProto:
    op = "MatMul" if reader == "MatMul" else "Gemm"
    product = helper.make_node(op, [read, "W"], [f"{name}.y"], f"{name}.product", **READERS[reader])
    nodes, outputs = [product], [helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, ["N", WIDTH])]
    if inputs:
        nodes.append(helper.make_node("Identity", ["go"], ["going"]))
        outputs.insert(0, helper.make_tensor_value_info("going", TensorProto.BOOL, []))
    return helper.make_graph(nodes, name, inputs, outputs)


def choice(reader: str) -> onnx.ModelProto:
    """Both branches read the weight."""
    branches = {f"{name}_branch": body(name, reader, [], "x") for name in ("then", "else")}
    return model([helper.make_node("If", ["flag"], ["y"], "choice", **branches)])


def loop(reader: str) -> onnx.ModelProto:
    kinds = {"i": TensorProto.INT64, "go": TensorProto.BOOL, "h": TensorProto.FLOAT}
    inputs = [helper.make_tensor_value_info(n, t, ["N", WIDTH] if n == "h" else []) for n, t in kinds.items()]
    times = numpy_helper.from_array(np.array(2, np.int64), "times")
    node = helper.make_node("Loop", ["times", "flag", "x"], ["y"], "loop", body=body("step", reader, inputs, "h"))
    return model([node], [times])


def model(nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto] | None = None) -> onnx.ModelProto:
    weight = np.random.default_rng(1).standard_normal((WIDTH, WIDTH)).astype(np.float32) / np.float32(WIDTH**0.5)
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTH]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", WIDTH])],
        [numpy_helper.from_array(weight, "W"), *(constants or [])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [choice, loop])
def test_every_version_loads_it(make: object, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    flags = [True, True] if make is loop else [True, False]
    samples = [{"x": rng.standard_normal((4, WIDTH)).astype(np.float32), "flag": np.array(flag)} for flag in flags]
    data = support.save_samples(tmp_path / "data", samples)
    written = tmp_path / "written"
    written.mkdir()
    references = {}
    for reader in READERS:
        onnx.save(make(reader), tmp_path / "model.onnx")
        np.savez(written / f"{reader}.sample.npz", **samples[0])
        references[reader] = support.outputs(support.load(tmp_path / "model.onnx"), samples)
        for form, options in FORMS.items():
            output = written / f"{reader}-{form}.onnx"
            if "--weights-only" in options:
                support.weights_only(tmp_path / "model.onnx", output, *options[1:])
            else:
                support.quantize(tmp_path / "model.onnx", output, data, *options)
            found = support.outputs(support.check_model(output), samples)
            assert support.sqnr(references[reader], found) > (14 if form == "blocks-4" else 24), form
            stored = [t for t in onnx.load(output).graph.initializer if np.prod(t.dims) >= WIDTH**2]
            assert len(stored) == 1, [t.name for t in stored]
    for runtime in support.RUNTIMES:
        for name, found in run_all(written, tmp_path / runtime.name, runtime.name, str(runtime)).items():
            reader, form = name.split("-", 1)
            then = support.sqnr([references[reader][0]], [found])
            assert then > (14 if form == "blocks-4" else 24), (runtime.name, name, then)


@pytest.mark.parametrize("make", [choice, loop])
@pytest.mark.parametrize("reader", READERS)
def test_2_bits_in_bodies_are_refused_before_the_work(reader: str, make: object, tmp_path: Path) -> None:
    """The runtime folds no constants of 2 bits; its own operator takes them."""
    onnx.save(make(reader), tmp_path / "m.onnx")
    options = ["--weights-only", "--bits", "2", "--block-size", "16"]
    done = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", *options, "--weights-form", "qdq")
    assert done.returncode == BAD_INPUT and "--set weights-form=matmul-nbits stores it" in done.stderr
    support.weights_only(tmp_path / "m.onnx", tmp_path / "q.onnx", *options[1:])
    assert support.load(tmp_path / "q.onnx")
