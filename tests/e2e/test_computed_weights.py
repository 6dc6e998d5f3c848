"""Weights that nodes make of constants are stored as integers in every form, once for all that read them."""

import re
from pathlib import Path

import graphs
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper

N = 64
FORMS = {
    "blocks": ["--weights-only"],
    "blocks-8": ["--weights-only", "--bits", "8"],
    "blocks-qdq": ["--weights-only", "--weights-form", "qdq"],
    "dynamic": ["--activations", "dynamic"],
    "plain": ["--preset", "plain"],
}


def constant(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def made(kind: str, y: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Nodes that make the weight y, and the constants that they read."""
    weight = np.random.default_rng(1).standard_normal((N, N)).astype(np.float32) / np.float32(N**0.5)
    node = helper.make_node
    match kind:
        case "identity":
            return [node("Identity", ["W"], [y])], [constant("W", weight)]
        case "cast":
            return [node("Cast", ["W"], [y], to=TensorProto.FLOAT)], [constant("W", weight.astype(np.float16))]
        case "double":
            return [node("Cast", ["W"], [y], to=TensorProto.FLOAT)], [constant("W", weight.astype(np.float64))]
        case "reshape":
            flat = [constant("W", weight.reshape(-1)), constant("shape", np.array([N, N], np.int64))]
            return [node("Reshape", ["W", "shape"], [y])], flat
        case "squeeze":
            return [node("Squeeze", ["W", "axis"], [y])], [constant("W", weight[None]), constant("axis", np.array([0], np.int64))]
        case "scaled":
            return [node("Mul", ["W", "two"], [y])], [constant("W", weight / 2), constant("two", np.array(2, np.float32))]
        case "cast and reshape":
            nodes = [
                node("Cast", ["W"], [f"{y}.f"], to=TensorProto.FLOAT),
                node("Reshape", [f"{y}.f", "shape"], [f"{y}.r"]),
                node("Transpose", [f"{y}.r"], [y], perm=[1, 0]),
            ]
            return nodes, [constant("W", weight.astype(np.float16).reshape(-1)), constant("shape", np.array([N, N], np.int64))]
        case "cast and transpose":
            nodes = [node("Cast", ["W"], [f"{y}.f"], to=TensorProto.FLOAT), node("Transpose", [f"{y}.f"], [y], perm=[1, 0])]
            return nodes, [constant("W", weight.astype(np.float16))]
        case _:
            return [node("Transpose", ["W"], [y], perm=[1, 0])], [constant("W", weight)]


KINDS = ("identity", "cast", "double", "reshape", "squeeze", "scaled", "cast and reshape", "cast and transpose", "transpose")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_finds_them(kind: str, tmp_path: Path) -> None:
    """Two products, with nodes of their own before each."""
    (first, constants), (second, _) = made(kind, "u"), made(kind, "v")
    nodes = [
        *first,
        *second,
        helper.make_node("MatMul", ["x", "u"], ["a"], "a"),
        helper.make_node("Relu", ["a"], ["r"], "r"),
        helper.make_node("MatMul", ["r", "v"], ["y"], "y"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", N]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    rng = np.random.default_rng(2)
    samples = [{"x": rng.standard_normal((8, N)).astype(np.float32)} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    reference = support.outputs(support.load(tmp_path / "model.onnx"), samples)
    for form, options in FORMS.items():
        if "--weights-only" in options:
            said = support.weights_only(tmp_path / "model.onnx", tmp_path / "q.onnx", *options[1:])
        else:
            said = support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, *options)
        assert said["nodes_quantized"] >= 2 and said["nodes_in_float"] == 0, (form, said["notes"])
        found = support.outputs(support.check_model(tmp_path / "q.onnx"), samples)
        assert support.sqnr(reference, found) > (13 if form in ("blocks", "blocks-qdq") else 28), form
        stored = [t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if np.prod(t.dims) >= N * N / 2]
        assert len(stored) == (2 if form == "blocks-qdq" else 1), (form, [t.name for t in stored])
        assert all(t.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE) for t in stored)


def attention() -> onnx.ModelProto:
    """As Keras writes it, of any number of rows, with a table that is read by its last product as well."""
    width, heads, size = N, 4, 16
    b = graphs.Builder(6)
    table = b.weight("table", 200, width, scale=1)
    x = b.add("Gather", table, "ids")
    heads_of = {name: b.weight(name, width, heads, size, scale=width**-0.5) for name in "qkv"}
    q, k, v = (b.add("Einsum", x, weight, equation="abc,cde->abde") for weight in heads_of.values())
    scores = b.add("Softmax", b.add("Einsum", k, q, equation="aecd,abcd->acbe"), axis=3)
    mixed = b.add("Einsum", scores, v, equation="acbe,aecd->abcd")
    back = b.add("Einsum", mixed, b.weight("o", heads, size, width, scale=width**-0.5), equation="abcd,cde->abe")
    y = b.add("Einsum", b.add("Add", back, x), table, equation="bte,ve->btv")
    return b.model({"ids": (TensorProto.INT64, ["B", "T"])}, [y], opset=13)


@pytest.mark.parametrize("form", FORMS)
def test_einsums_with_weights_are_products(form: str, tmp_path: Path) -> None:
    onnx.save(attention(), tmp_path / "model.onnx")
    rng = np.random.default_rng(3)
    samples = [{"ids": rng.integers(0, 200, (1, 9))} for _ in range(8)]
    data = support.save_samples(tmp_path / "data", samples)
    options = FORMS[form]
    if "--weights-only" in options:
        said = support.weights_only(tmp_path / "model.onnx", tmp_path / "q.onnx", *options[1:])
    else:
        said = support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, *options)
    assert said["nodes_quantized"] >= 5, said["notes"]
    reference = support.outputs(support.load(tmp_path / "model.onnx"), samples)
    found = support.outputs(support.check_model(tmp_path / "q.onnx"), samples)
    assert support.sqnr(reference, found) > (15 if form in ("blocks", "blocks-qdq") else 28)
    written = onnx.load(tmp_path / "q.onnx").graph
    assert [node.op_type for node in written.node].count("Einsum") == 2  # of two activations
    in_float = [t.name for t in written.initializer if t.data_type == TensorProto.FLOAT and np.prod(t.dims) >= N * N]
    assert in_float == (["table"] if form == "blocks-qdq" else [])  # which has no such form for a Gather
    assert said["model_bytes_after"] < said["model_bytes_before"] * (0.7 if in_float else 0.5)


def test_what_stays_in_float_does_not_grow(tmp_path: Path) -> None:
    """A weight of 16-bit floats behind a Cast whose product stays as it is."""
    nodes, constants = made("cast", "u")
    nodes += [helper.make_node("MatMul", ["x", "u"], ["a"], "stays"), helper.make_node("MatMul", ["a", "V"], ["y"], "goes")]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", N]) for name in "xy"]
    constants.append(constant("V", np.random.default_rng(3).standard_normal((N, N)).astype(np.float32)))
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    said = support.weights_only(tmp_path / "model.onnx", tmp_path / "q.onnx", "--set", "node-bits=stays=float")
    assert (said["nodes_quantized"], said["nodes_in_float"]) == (1, 1)
    kept = {t.name: t.data_type for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert kept["W"] == TensorProto.FLOAT16


@pytest.mark.parametrize("kind", ["cast", "cast and reshape", "cast and transpose", "transpose"])
@pytest.mark.parametrize("form", ["plain", "dynamic"])
def test_what_other_forms_leave_in_float_does_not_grow(form: str, kind: str, tmp_path: Path) -> None:
    """The product that stays reads what is half as large, or is stored anyway, by the same nodes as before."""
    nodes, constants = made(kind, "u")
    if kind == "transpose":
        nodes.append(helper.make_node("Gather", ["W", "ids"], ["rows"], "table"))
    nodes += [helper.make_node("MatMul", ["x", "u"], ["a"], "stays"), helper.make_node("MatMul", ["a", "V"], ["y"], "goes")]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", N]) for name in "xy"]
    inputs, outputs = ports[:1], ports[1:]
    if kind == "transpose":
        inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"]))
        outputs.append(helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["N", N]))
    constants.append(constant("V", np.random.default_rng(3).standard_normal((N, N)).astype(np.float32)))
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    rng = np.random.default_rng(2)
    samples = [{"x": rng.standard_normal((8, N)).astype(np.float32)} for _ in range(4)]
    if kind == "transpose":
        samples = [{**sample, "ids": rng.integers(0, N, 8)} for sample in samples]
    data = support.save_samples(tmp_path / "data", samples)
    excluded = ["--exclude-nodes", "stays,table" if kind == "transpose" else "stays"]
    support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, *FORMS[form], *excluded)
    stored = [t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if np.prod(t.dims) >= N * N]
    kept = TensorProto.FLOAT16 if kind.startswith("cast") else TensorProto.FLOAT
    assert sorted(t.data_type for t in stored) == sorted([kept, TensorProto.INT8])
    reference = support.outputs(support.load(tmp_path / "model.onnx"), samples)
    assert support.sqnr(reference, support.outputs(support.check_model(tmp_path / "q.onnx"), samples)) > 28


@pytest.mark.parametrize("form", [["--format", "fp8"], ["--op-types", "MatMul"]], ids=["fp8", "products alone"])
def test_a_table_whose_transpose_is_the_head_is_stored_once(form: list[str], tmp_path: Path) -> None:
    """Also where nobody quantizes the node that looks rows up, which then reads what is left of the integers."""
    nodes, constants = made("transpose", "u")
    nodes.insert(0, helper.make_node("Gather", ["W", "ids"], ["rows"], "table"))
    nodes += [helper.make_node("Tanh", ["rows"], ["x"], "tanh"), helper.make_node("MatMul", ["x", "u"], ["y"], "head")]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", N])
    graph = helper.make_graph(nodes, "g", [ids], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    samples = [{"ids": np.random.default_rng(i).integers(0, N, 16)} for i in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *form, "--no-bench")
    stored = [t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if np.prod(t.dims) >= N * N]
    assert [onnx.helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in stored] == [1]
    reference = support.outputs(support.load(tmp_path / "m.onnx"), samples)
    # ONNX Runtime before 1.32 makes operators on integers of pairs with floats of 8 bits, which it then refuses.
    quantized = support.load(tmp_path / "q.onnx", disable_quant_qdq="1" if "fp8" in form else "0")
    assert support.sqnr(reference, support.outputs(quantized, samples)) > 22


@pytest.mark.parametrize("form", [["--format", "fp8"], ["--format", "int8"]], ids=["fp8", "int8"])
def test_a_table_whose_transpose_stays_in_float_does_so_too(form: list[str], tmp_path: Path) -> None:
    node, rng = helper.make_node, np.random.default_rng(3)
    nodes = [
        node("Gather", ["W", "ids"], ["rows"], "table"),
        node("MatMul", ["rows", "V"], ["x"], "goes"),
        node("Tanh", ["x"], ["t"], "tanh"),
        node("Transpose", ["W"], ["u"], "turn", perm=[1, 0]),
        node("MatMul", ["t", "u"], ["y"], "stays"),
    ]
    shapes = {"W": (8 * N, N), "V": (N, N)}
    constants = [constant(name, np.float32(rng.standard_normal(shape) / N**0.5)) for name, shape in shapes.items()]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8 * N])
    graph = helper.make_graph(nodes, "g", [ids], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", [{"ids": np.random.default_rng(i).integers(0, N, 16)} for i in range(4)])
    support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *form, "--exclude-nodes", "stays", "--no-bench")
    stored = [t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if np.prod(t.dims) >= N * N]
    assert sorted(onnx.helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in stored) == [1, 4]


@pytest.mark.parametrize("option", ["--nodes", "--exclude-nodes"])
@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("halves", "'halves' of .* was folded: all that it reads is constant"),
        ("^halv.*", "'halves' of .* was folded: all that it reads is constant"),
        ("norm", "'norm' of .* was folded into its neighbours"),
        ("nobody", "no node of .* matches 'nobody'"),
    ],
)
def test_a_node_that_was_folded_is_named_as_such(named: str, why: str, option: str, tmp_path: Path) -> None:
    b = graphs.Builder(3)
    weight = b.add("Mul", b.weight("w", 4, 3, 3, 3), b.constant("half", 0.5), name="halves")
    norm = [b.constant(f"n{i}", np.full(4, 0.5 + i)) for i in range(4)]
    y = b.add("BatchNormalization", b.add("Conv", "x", weight, name="conv"), *norm, name="norm")
    onnx.save(b.model({"x": (graphs.FLOAT, [1, 3, 8, 8])}, [b.add("Relu", y)]), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", [{"x": np.ones((1, 3, 8, 8), np.float32)}])
    done = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", data, option, named)
    assert done.returncode == 2 and re.search(f"{option}: {why}", done.stderr), done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "q.onnx").exists()


def test_what_an_identity_hands_on_is_stored_once(tmp_path: Path) -> None:
    """As exporters write a weight that several layers share: the first reads it, the others through an Identity each."""
    nodes = [
        helper.make_node("Identity", ["W"], ["v"]),
        helper.make_node("MatMul", ["x", "W"], ["a"], "a"),
        helper.make_node("Relu", ["a"], ["r"], "r"),
        helper.make_node("MatMul", ["r", "v"], ["y"], "y"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", N]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], made("identity", "u")[1])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    support.weights_only(tmp_path / "m.onnx", tmp_path / "q.onnx", "--bits", "8")
    written = onnx.load(tmp_path / "q.onnx").graph
    assert [node.op_type for node in written.node] == ["MatMulNBits", "Relu", "MatMulNBits"]
    assert sum(t.data_type == TensorProto.UINT8 and int(np.prod(t.dims)) >= N * N for t in written.initializer) == 1
