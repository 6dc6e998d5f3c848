"""Graphs as exporters write them: batches that are declared dynamic but fixed by constants, types that are said to be
those of other values."""

import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(51)


def weight(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def save(path: Path, nodes: list, inputs: dict[str, list], outputs: list[str], constants: dict, opset: int = 18) -> Path:
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    ins = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()]
    outs = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", ins, outs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


@pytest.mark.parametrize("op_type", ["GRU", "LSTM", "RNN", "Concat"])
def test_a_batch_that_constants_fix(op_type: str, tmp_path: Path) -> None:
    """Rows are not samples there, although the model declares any number of them."""
    rows, steps, width = 3, 5, 8
    constants = {"axis": np.array([1]), "w": weight(width, 6)}
    if op_type == "Concat":
        constants["h"] = weight(rows, 1, width)
        nodes = [helper.make_node("Concat", ["x", "h"], ["steps"], "join", axis=1)]
    else:
        gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[op_type]
        constants |= {"W": weight(1, gates * width, width), "R": weight(1, gates * width, width), "h": weight(1, rows, width)}
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], "t", perm=[1, 0, 2]),
            helper.make_node(op_type, ["t", "W", "R", "", "", "h"], ["s"], "cell", hidden_size=width),
            helper.make_node("Squeeze", ["s", "axis"], ["q"], "squeeze"),
            helper.make_node("Transpose", ["q"], ["steps"], "back", perm=[1, 0, 2]),
        ]
    nodes.append(helper.make_node("MatMul", ["steps", "w"], ["y"], "head"))
    model = save(tmp_path / "m.onnx", nodes, {"x": ["batch", steps, width]}, ["y"], constants)
    samples = [{"x": RNG.standard_normal((rows, steps, width)).astype(np.float32)} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    told = support.quantize(model, tmp_path / "q.onnx", data, "--preset", "balanced")
    assert told["nodes_quantized"] > 0
    assert told["accuracy"]["sqnr_db"] > 25


def test_constants_that_are_cast_like_values(tmp_path: Path) -> None:
    """Weights and biases behind CastLike are constants."""
    constants = {"w": weight(16, 8, 3), "b": weight(1, 16)[0], "m": weight(16, 4), "scale": np.array(2.0, np.float64)}
    nodes = [
        helper.make_node("CastLike", ["w", "x"], ["w_like"], "w_like"),
        helper.make_node("CastLike", ["b", "x"], ["b_like"], "b_like"),
        helper.make_node("Conv", ["x", "w_like", "b_like"], ["c"], "conv", pads=[1, 1]),
        helper.make_node("CastLike", ["scale", "c"], ["s"], "s"),
        helper.make_node("Mul", ["c", "s"], ["d"], "mul"),
        helper.make_node("Relu", ["d"], ["r"], "relu"),
        helper.make_node("Transpose", ["r"], ["t"], "t", perm=[0, 2, 1]),
        helper.make_node("CastLike", ["m", "t"], ["m_like"], "m_like"),
        helper.make_node("MatMul", ["t", "m_like"], ["y"], "head"),
    ]
    model = save(tmp_path / "m.onnx", nodes, {"x": [1, 8, 20]}, ["y"], constants)
    data = support.save_samples(tmp_path / "data", [{"x": weight(1, 8, 20)} for _ in range(4)])
    told = support.quantize(model, tmp_path / "q.onnx", data, "--preset", "balanced")
    assert not [note for note in told["notes"] if "not constant" in note]
    ops = [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node]
    assert "CastLike" not in ops
    products = [node for node in onnx.load(tmp_path / "q.onnx").graph.node if node.op_type in ("Conv", "MatMul")]
    makers = {out: node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node for out in node.output}
    assert all(makers[node.input[1]] == "DequantizeLinear" for node in products)


@pytest.mark.parametrize("options", [["--preset", "plain"], ["--preset", "balanced"]], ids=["plain", "balanced"])
@pytest.mark.parametrize("opset", [11, 13, 18])
def test_what_makes_shapes_stays_as_it_is(opset: int, options: list[str], tmp_path: Path) -> None:
    """Sizes of a Resize from the size of its input, by floats, as exporters of detectors write them."""
    axes = {"axes": [0]} if opset < 13 else {}
    more = [] if opset < 13 else ["zero"]
    nodes = [helper.make_node("Shape", ["c"], ["shape"], "shape")]
    for axis, name in (("two", "h"), ("three", "w_")):
        nodes += [
            helper.make_node("Gather", ["shape", axis], [f"{name}0"], f"{name}0", axis=0),
            helper.make_node("Cast", [f"{name}0"], [f"{name}1"], f"{name}1", to=FLOAT),
            helper.make_node("Mul", [f"{name}1", "factor"], [f"{name}2"], f"{name}2"),
            helper.make_node("Floor", [f"{name}2"], [f"{name}3"], f"{name}3"),
            helper.make_node("Unsqueeze", [f"{name}3", *more], [f"{name}4"], f"{name}4", **axes),
        ]
    nodes += [
        helper.make_node("Concat", ["h4", "w_4"], ["hw"], "hw", axis=0),
        helper.make_node("Cast", ["hw"], ["whole"], "whole", to=TensorProto.INT64),
        helper.make_node("Slice", ["shape", "zero", "end"], ["front"], "front"),
        helper.make_node("Concat", ["front", "whole"], ["sizes"], "sizes", axis=0),
        helper.make_node("Resize", ["c", "none" if opset < 13 else "", "none" if opset < 13 else "", "sizes"], ["r"], "resize"),
        helper.make_node("Conv", ["r", "v"], ["y"], "head"),
    ]
    constants = {"w": weight(8, 3, 3, 3), "v": weight(4, 8, 1, 1), "factor": np.array(2.3, np.float32)}
    constants |= {"two": np.array(2), "three": np.array(3), "zero": np.array([0]), "end": np.array([2])}
    constants |= {"none": np.zeros(0, np.float32)}
    conv = helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4)
    model = save(tmp_path / "m.onnx", [conv, *nodes], {"x": [1, 3, "h", "w"]}, ["y"], constants, opset)
    samples = [{"x": RNG.standard_normal((1, 3, 9 + i, 13)).astype(np.float32)} for i in range(3)]
    data = support.save_samples(tmp_path / "data", samples)
    support.quantize(model, tmp_path / "q.onnx", data, *options)
    floats = [node for node in onnx.load(tmp_path / "q.onnx").graph.node if node.op_type in ("Mul", "Floor")]
    makers = {out: node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node for out in node.output}
    assert floats
    assert not [name for node in floats for name in node.input if makers.get(name) == "DequantizeLinear"]
    result = support.detent("compare", model, tmp_path / "q.onnx", "--calibration-data", data, "--json")
    assert result.returncode == 0, result.stderr
    assert min(output["sqnr_db"] for output in support.json.loads(result.stdout)["outputs"]) > 25


CUT = ["--set", "segments=3", "--set", "memory-level=2"]
FORMS = [
    ["--preset", "balanced"],
    ["--preset", "plain"],
    ["--preset", "balanced", *CUT],
    ["--preset", "plain", "--finetune", "gptq"],
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", FORMS, ids=["balanced", "plain", "segments", "gptq"])
@pytest.mark.parametrize("wrong", ["batch", "size", "inferred"])
def test_shapes_that_are_stated_or_inferred_wrongly(wrong: str, options: list[str], tmp_path: Path) -> None:
    """Shapes that values have win; the runtime only warns."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4)]
    last, shape = "c", [2, 3, 10, 10]
    if wrong == "inferred":  # the factor is a float, and shape inference rounds it otherwise than the kernel
        nodes.append(helper.make_node("Resize", ["c", "", "scales"], ["r"], "resize"))
        last, shape = "r", [1, 3, 10, 10]
    nodes += [
        helper.make_node("Relu", [last], ["f"], "relu"),
        helper.make_node("Conv", ["f", "v"], ["y"], "head"),
    ]
    constants = {"w": weight(8, 3, 3, 3), "v": weight(4, 8, 1, 1), "scales": np.array([1, 1, 1.7, 2.3], np.float32)}
    declared = shape if wrong == "inferred" else ["n", 3, "h", "w"]
    model = onnx.load(save(tmp_path / "m.onnx", nodes, {"x": declared}, ["y"], constants))
    stated = {"batch": [1, 8, 10, 10], "size": [2, 8, 224, 224]}.get(wrong)
    if stated:
        model.graph.value_info.extend(helper.make_tensor_value_info(name, FLOAT, stated) for name in "cf")
    onnx.save(model, tmp_path / "m.onnx")
    samples = [{"x": RNG.standard_normal(shape).astype(np.float32)} for _ in range(6)]
    data = support.save_samples(tmp_path / "data", samples)
    support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *options)
    for command in ("compare", "verify"):
        more = ["--target", "ort-cpu"] if command == "verify" else []
        result = support.detent(command, tmp_path / "m.onnx", tmp_path / "q.onnx", "--calibration-data", data, "--json", *more)
        assert result.returncode == 0, result.stderr


def test_an_output_that_is_nothing_but_zeros_hides_no_other(tmp_path: Path) -> None:
    """Errors in zeros have no ratio: they are told as such, and another output is the worst."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Sub", ["c", "c0"], ["zeros"], "sub"),
        helper.make_node("Conv", ["x", "v"], ["y"], "other"),
    ]
    constants = {"w": weight(4, 3, 1, 1), "v": weight(4, 3, 1, 1)}
    nodes.insert(1, helper.make_node("Conv", ["x", "w0"], ["c0"], "twin"))
    model = save(tmp_path / "m.onnx", nodes, {"x": [1, 3, 8, 8]}, ["zeros", "y"], constants | {"w0": constants["w"]})
    data = support.save_samples(tmp_path / "data", [{"x": weight(1, 3, 8, 8)} for _ in range(4)])
    told = support.quantize(model, tmp_path / "q.onnx", data, "--preset", "balanced", "--op-types", "Conv", "--nodes", "conv,other")
    assert told["accuracy"]["sqnr_db"] > 20
    result = support.detent("compare", model, tmp_path / "q.onnx", "--calibration-data", data, "--json")
    compared = support.json.loads(result.stdout)
    assert [output["name"] for output in compared["outputs"]] == ["y"]
    assert any("'zeros' is 0 everywhere" in note for note in compared["notes"])


def test_inspect_knows_shapes_that_follow_from_static_inputs(tmp_path: Path) -> None:
    """As a Slice by half of a size, which exporters write for chunk()."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Shape", ["c"], ["shape"], "shape"),
        helper.make_node("Gather", ["shape", "one"], ["channels"], "gather"),
        helper.make_node("Div", ["channels", "two"], ["half"], "div"),
        helper.make_node("Slice", ["c", "zero", "half", "one"], ["m"], "slice"),
        helper.make_node("Conv", ["m", "v"], ["y"], "head"),
    ]
    constants = {"w": weight(8, 3, 1, 1), "v": weight(4, 4, 1, 1)}
    constants |= {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}
    for shape in ([1, 3, 8, 8], [1, 3, "h", 8]):
        model = save(tmp_path / "m.onnx", nodes, {"x": shape}, ["y"], constants)
        result = support.detent("inspect", model)
        assert result.returncode == 0, result.stderr
        assert ("?" in result.stdout) == ("h" in shape)


PADS = {
    "as they are": ([2, 3], [1, 2, 3, 4]),
    "from the end": ([-1, -2], [2, 1, 4, 3]),
    "one": ([3], [2, 1]),
    "channels": ([1, 3], [1, 0, 3, 2]),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("form", ["plain", "balanced", "16 bits"])
@pytest.mark.parametrize("which", PADS)
def test_pads_of_some_axes(which: str, form: str, tmp_path: Path) -> None:
    """Between convolutions on integers, around which the runtime moves transposes past the pads."""
    axes, pads = PADS[which]
    more = sum(pads[axes.index(1) :: len(axes)]) if 1 in axes else 0
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Pad", ["r", "pads", "", "axes"], ["p"], "pad"),
        helper.make_node("Conv", ["p", "v"], ["b"], "second"),
        helper.make_node("Resize", ["b", "", "scales"], ["y"], mode="nearest"),
    ]
    constants = {"w": weight(8, 3, 3, 3) / 3, "v": weight(4, 8 + more, 3, 3) / 3, "scales": np.float32([1, 1, 1.3, 1.3])}
    constants |= {"pads": np.array(pads, np.int64), "axes": np.array(axes, np.int64)}
    model = save(tmp_path / "m.onnx", nodes, {"x": [1, 3, 10, 10]}, ["y"], constants)
    samples = [{"x": RNG.standard_normal((1, 3, 10, 10)).astype(np.float32)} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    options = {
        "plain": ["--preset", "plain"],
        "balanced": ["--preset", "balanced", "--optimize-for", "size"],
        "16 bits": ["--preset", "plain", "--activation-type", "int16"],
    }[form]
    support.quantize(model, tmp_path / "q.onnx", data, *options)
    found = support.outputs(support.load(tmp_path / "q.onnx"), samples)
    assert support.sqnr(support.outputs(support.load(model), samples), found) > 25


def given_while_it_runs(op_type: str, attributes: dict, inputs: list[str]) -> list[onnx.NodeProto]:
    """Between convolutions, for which the runtime turns values and moves the transposes on."""
    return [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node(op_type, ["r", *inputs], ["s"], "some", **attributes),
        helper.make_node("Conv", ["s", "v"], ["b"], "next", pads=[1] * 4),
        helper.make_node("Conv", ["b", "v"], ["y"], "head"),
    ]


SOME_AXES = {
    "larger": ("Resize", {"axes": [2, 3], "mode": "linear", "keep_aspect_ratio_policy": "not_smaller"}, ["", "", "sizes"]),
    "smaller": ("Resize", {"axes": [-2, -1], "mode": "nearest", "keep_aspect_ratio_policy": "not_larger"}, ["", "", "sizes"]),
    "from the end": ("Resize", {"axes": [-2, -1], "mode": "linear"}, ["", "", "sizes"]),
    "turned": ("Resize", {"axes": [3, 2], "mode": "nearest"}, ["", "", "sizes"]),
    "turned scales": ("Resize", {"axes": [3, 2], "mode": "linear"}, ["", "scales"]),
    "region": (
        "Resize",
        {"axes": [2, 3], "mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"},
        ["region", "", "sizes"],
    ),
    "pads": ("Pad", {}, ["pads", "", "axes"]),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("batch", [1, "batch"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("which", SOME_AXES)
def test_some_axes_told_otherwise(which: str, known: bool, batch: int | str, tmp_path: Path) -> None:
    """Sizes, scales and pads as constants or as inputs, axes out of order, and ratios that are kept."""
    op_type, attributes, inputs = SOME_AXES[which]
    told = {"sizes": np.array([26, 20]), "scales": np.float32([1.5, 1.25]), "pads": np.array([1, 2, 0, 3])}
    fixed = {"region": np.float32([0.1, 0, 0.9, 1]), "axes": np.array([2, -1]), "w": weight(8, 3, 3, 3), "v": weight(8, 8, 3, 3)}
    given = {} if known else {name: told[name] for name in inputs if name in told}
    constants = {name: array for name, array in (fixed | told).items() if name in ("w", "v", *inputs) and name not in given}
    nodes = given_while_it_runs(op_type, attributes, inputs)
    model = save(tmp_path / "m.onnx", nodes, {"x": [batch, 3, 13, 17]}, ["y"], constants)
    loaded = onnx.load(model)
    kinds = {np.dtype(np.int64): TensorProto.INT64, np.dtype(np.float32): TensorProto.FLOAT}
    for name, array in given.items():
        loaded.graph.input.append(helper.make_tensor_value_info(name, kinds[array.dtype], array.shape))
    onnx.save(loaded, model)
    samples = [{"x": RNG.standard_normal((1, 3, 13, 17)).astype(np.float32), **given} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    support.quantize(model, tmp_path / "q.onnx", data, "--preset", "plain")
    expected = support.outputs(support.load(model), samples)
    assert support.sqnr(expected, support.outputs(support.load(tmp_path / "q.onnx"), samples)) > 25


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [1, "batch"])
@pytest.mark.parametrize("told_by", ["sizes", "scales"])
def test_resizes_of_some_axes(batch: int | str, told_by: str, tmp_path: Path) -> None:
    """ONNX Runtime 1.31 moved transposes past them as if they told the sizes of all axes, and loaded no such file."""
    constants = {"w": weight(8, 3, 3, 3), "v": weight(8, 16, 1, 1)}
    constants |= {"sizes": np.array([26, 34])} if told_by == "sizes" else {"scales": np.array([2, 2], np.float32)}
    told = ["", "", "sizes"] if told_by == "sizes" else ["", "scales"]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Resize", ["r", *told], ["n"], "nearest", axes=[2, 3], mode="nearest"),
        helper.make_node("Resize", ["r", *told], ["l"], "linear", axes=[-2, -1], mode="linear"),
        helper.make_node("Concat", ["n", "l"], ["j"], "join", axis=1),
        helper.make_node("Conv", ["j", "v"], ["y"], "head"),
    ]
    model = save(tmp_path / "m.onnx", nodes, {"x": [batch, 3, 13, 17]}, ["y"], constants)
    samples = [{"x": RNG.standard_normal((1, 3, 13, 17)).astype(np.float32)} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    for options in (["--preset", "plain"], ["--preset", "balanced"]):
        support.quantize(model, tmp_path / "q.onnx", data, *options)
        expected = support.outputs(support.load(model), samples)
        assert support.sqnr(expected, support.outputs(support.load(tmp_path / "q.onnx"), samples)) > 25
