"""A weight that several nodes read, along whichever axes, gives right results in every form, and the file holds it once."""

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper

N = 48  # rows and columns of the weight
FORMS = {
    "plain": ["--preset", "plain"],
    "size": ["--preset", "balanced"],
    "per-tensor": ["--preset", "plain", "--per-tensor"],
    "uint8": ["--preset", "plain", "--weight-type", "uint8"],
    "reduced": ["--preset", "plain", "--set", "weight-range=reduced"],
    "int16": ["--preset", "plain", "--activation-type", "int16"],
    "qoperator": ["--preset", "plain", "--quant-format", "qoperator"],
    "tensorrt": ["--target", "tensorrt"],
    "openvino": ["--target", "openvino"],
    "dynamic": ["--activations", "dynamic"],
    "float16": ["--preset", "none", "--float", "16"],
}
MATRIX = ("gemm", "turned gemm", "matmul", "transpose", "left", "table")
FILTER = ("conv", "transposed conv", "conv with bias")


def reader(kind: str, x: str, y: str) -> list[onnx.NodeProto]:
    """Nodes that make y of x [N, N] or [1, N, 8, 8] and of the weight W."""
    match kind:
        case "gemm":
            return [helper.make_node("Gemm", [x, "W", "bias"], [y], f"{y}.gemm")]
        case "turned gemm":
            return [helper.make_node("Gemm", [x, "W", "bias"], [y], f"{y}.gemm", transB=1)]
        case "matmul":
            return [helper.make_node("MatMul", [x, "W"], [y], f"{y}.matmul")]
        case "transpose":
            turned = helper.make_node("Transpose", ["W"], [f"{y}.T"], f"{y}.transpose", perm=[1, 0])
            return [turned, helper.make_node("MatMul", [x, f"{y}.T"], [y], f"{y}.matmul")]
        case "left":
            return [helper.make_node("MatMul", ["W", x], [y], f"{y}.matmul")]
        case "table":
            rows = helper.make_node("Gather", ["W", "ids"], [f"{y}.rows"], f"{y}.gather")
            return [rows, helper.make_node("Add", [f"{y}.rows", x], [y], f"{y}.add")]
        case "conv" | "conv with bias":
            inputs = [x, "W", "bias"] if "bias" in kind else [x, "W"]
            return [helper.make_node("Conv", inputs, [y], f"{y}.conv", pads=[1] * 4)]
        case _:
            return [helper.make_node("ConvTranspose", [x, "W"], [y], f"{y}.deconv", pads=[1] * 4)]


def model(first: str, second: str) -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    is_filter = first in FILTER
    dims, shape = ([N, N, 3, 3], [1, N, 8, 8]) if is_filter else ([N, N], [N, N])
    weight = rng.standard_normal(dims).astype(np.float32) / np.float32(np.prod(dims[1:]) ** 0.5)
    weight *= np.exp(rng.standard_normal(N) / 3).astype(np.float32).reshape([N] + [1] * (len(dims) - 1))
    nodes = [*reader(first, "x", "a"), helper.make_node("Relu", ["a"], ["r"], "relu"), *reader(second, "r", "y")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    if "table" in (first, second):
        inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, [N]))
    constants = [numpy_helper.from_array(weight, "W")]
    if any("bias" in node.input for node in nodes):
        constants.append(numpy_helper.from_array(rng.standard_normal(N).astype(np.float32) / 4, "bias"))
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(made: onnx.ModelProto) -> list[support.Sample]:
    rng = np.random.default_rng(2)
    shape = [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim]
    ids = {"ids": rng.integers(0, N, N)} if len(made.graph.input) > 1 else {}
    return [{"x": rng.standard_normal(shape).astype(np.float32), **ids} for _ in range(4)]


def stored(path: Path) -> int:
    """Bytes of large constants."""
    arrays = [numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer]
    return sum(array.nbytes for array in arrays if array.size >= N * N)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS)
def test_readers_along_any_axes(form: str, tmp_path: Path) -> None:
    pairs = [*itertools.product(MATRIX, MATRIX), *itertools.product(FILTER, FILTER)]
    start = [*FORMS].index(form) % 3
    for first, second in pairs if form == "plain" else pairs[start::3]:
        if form == "dynamic" and (first in FILTER or "left" in (first, second)):
            continue  # there is no such form
        if form in ("tensorrt", "openvino") and "left" in (first, second):
            continue  # which stays in float there
        if form == "openvino" and first == second == "transposed conv":
            continue  # which it does not quantize
        if form == "float16" and first == second == "table":
            continue  # where casts would cost more than they gain
        made = model(first, second)
        onnx.save(made, tmp_path / "model.onnx")
        inputs = samples(made)
        data = support.save_samples(tmp_path / f"{first}-{second}", inputs)
        support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, *FORMS[form], "--no-bench")
        reference = support.outputs(support.load(tmp_path / "model.onnx"), inputs)
        found = support.outputs(support.check_model(tmp_path / "q.onnx"), inputs)
        assert support.sqnr(reference, found) > (50 if form == "float16" else 24), (first, second)
        is_wide = form == "float16" or (form == "int16" and {first, second} == {"table"})
        once = np.prod([N, N, 3, 3] if first in FILTER else [N, N]) * (2 if is_wide else 1)
        copies = 1 if form not in ("tensorrt", "openvino") or "transpose" not in (first, second) else 2
        assert stored(tmp_path / "q.onnx") <= once * copies, (first, second)


def branch(value: str) -> onnx.GraphProto:
    """That gives the value out."""
    out = "given"
    info = helper.make_tensor_value_info(out, TensorProto.FLOAT, [N, N])
    return helper.make_graph([helper.make_node("Identity", [value], [out])], "branch", [], [info])


#: Who else keeps the weight in float, and the form in which the output of the second weight comes.
KEEPERS = {
    "output": [],
    "output by Identity": [helper.make_node("Identity", ["W"], ["other"], "same")],
    "output by If": [helper.make_node("If", ["flag"], ["other"], "if", then_branch=branch("W"), else_branch=branch("W"))],
    "sum": [helper.make_node("ReduceSum", ["W"], ["other"], "sum", keepdims=0)],
    "computed weight": [helper.make_node("Mul", ["W", "x"], ["other"], "mul")],
    "left operand": [helper.make_node("MatMul", ["W", "x"], ["other"], "left")],
    "Gemm with alpha": [helper.make_node("Gemm", ["x", "W"], ["other"], "gemm", alpha=0.5)],
    "rows by GatherND": [helper.make_node("GatherND", ["W", "rows"], ["other"], "rows")],
}
WEIGHTS_ALONE = {
    "dynamic": ["--activations", "dynamic"],
    "4 bits": ["--weights-only"],
    "8 bits": ["--weights-only", "--bits", "8"],
    "4 bits, DequantizeLinear": ["--weights-only", "--weights-form", "qdq"],
}


def kept(keeper: str) -> onnx.ModelProto:
    """Two products, of which something else reads the first one's weight, or is that weight."""
    rng = np.random.default_rng(3)
    first = helper.make_node("MatMul", ["x", "W"], ["a"], "first")
    nodes = [first, helper.make_node("MatMul", ["a", "V"], ["y"], "second"), *KEEPERS[keeper]]
    outputs = [("y", [N, N]), ("W" if keeper == "output" else "other", [N, N] if keeper.startswith("output") else None)]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs]
    constants = [numpy_helper.from_array(rng.normal(0, 0.15, (N, N)).astype(np.float32), name) for name in "WV"]
    if "GatherND" in keeper:
        constants.append(numpy_helper.from_array(np.array([[0], [5]]), "rows"))
    if "If" in keeper:
        constants.append(numpy_helper.from_array(np.array(True), "flag"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [N, N])
    made = helper.make_model(helper.make_graph(nodes, "g", [x], infos, constants), ir_version=8)
    made.opset_import[0].version = 17
    return made


@pytest.mark.sampled(7)
@pytest.mark.parametrize("form", WEIGHTS_ALONE)
@pytest.mark.parametrize("keeper", [keeper for keeper in KEEPERS if "If" not in keeper])
def test_integers_are_not_stored_beside_a_weight_that_stays(keeper: str, form: str, tmp_path: Path) -> None:
    onnx.save(kept(keeper), tmp_path / "m.onnx")
    done = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", *WEIGHTS_ALONE[form], "--no-bench")
    assert done.returncode == 0, done.stderr
    assert "first' stays in float: what else reads its weight, or is an output, keeps that in float" in done.notes
    padded = 64  # rows in whole blocks
    assert stored(tmp_path / "q.onnx") <= N * N * 4 + N * padded
    kinds = [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node if node.name in ("first", "second")]
    assert kinds.count("MatMul") == (1 if form != "4 bits, DequantizeLinear" else 2)


EVERY = FORMS | WEIGHTS_ALONE | {
    "default": [],
    "float16 throughout": ["--preset", "none", "--float", "16", "--set", "no-keep-io-types"],
    "bfloat16": ["--preset", "none", "--float", "bf16"],
    "int8 among float16": ["--preset", "balanced", "--float", "16"],
    "4 bits among float16": ["--weights-only", "--float", "16"],
}  # fmt: skip


@pytest.mark.sampled(12)
@pytest.mark.parametrize("form", EVERY)
@pytest.mark.parametrize("keeper", ["output", "output by Identity", "output by If"])
def test_a_weight_that_is_an_output_is_stored_once(keeper: str, form: str, tmp_path: Path) -> None:
    onnx.save(kept(keeper), tmp_path / "m.onnx")
    inputs = [{"x": np.random.default_rng(i).standard_normal((N, N)).astype(np.float32)} for i in range(4)]
    data = support.save_samples(tmp_path / "data", inputs)
    support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *EVERY[form], "--no-bench")
    once = N * N * 4
    second = 64 * N * 2 if "bit" in form else once  # in whole blocks
    assert stored(tmp_path / "q.onnx") <= once + second
    taken = inputs
    if form == "float16 throughout":
        taken = [{"x": sample["x"].astype(np.float16)} for sample in inputs]
    elif form == "bfloat16":
        return  # which has no kernels here
    reference = support.outputs(support.load(tmp_path / "m.onnx"), inputs)
    found = support.outputs(support.check_model(tmp_path / "q.onnx"), taken)
    assert support.sqnr(reference, found) > 14
