"""One tensor of boxes to hundreds and scores to 1: what one scale leaves of the scores is told, whatever makes the tensor."""

import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path

RNG = np.random.default_rng(0)
HEADS = ("Conv", "Grouped", "ConvTranspose", "MatMul", "Transpose", "Softmax")


def model(head: str) -> onnx.ModelProto:
    """Twelve channels, of which four are boxes."""
    sizes = np.r_[np.full(4, 300), np.full(8, 0.5)].astype(np.float32)
    weights = {"w1": RNG.normal(size=(32, 3, 3, 3)) * 0.2, "b1": RNG.normal(size=32) * 0.1}
    nodes = [helper.make_node("Conv", ["x", "w1", "b1"], ["c"], "first", pads=[1] * 4), helper.make_node("Relu", ["c"], ["r"], "r")]
    if head == "MatMul":
        weights["w2"] = RNG.normal(size=(32, 12)) * 0.2 * sizes
        nodes.append(helper.make_node("Reshape", ["r", "shape"], ["flat"], "flat"))
        nodes.append(helper.make_node("Transpose", ["flat"], ["rows"], "rows", perm=[0, 2, 1]))
        nodes.append(helper.make_node("MatMul", ["rows", "w2"], ["y"], "head"))
        shape = [1, 256, 12]
    else:
        weights["w2"] = RNG.normal(size=(12, 32, 1, 1)) * 0.2 * sizes.reshape(12, 1, 1, 1)
        shape = [1, 12, 16, 16]
        if head == "ConvTranspose":
            weights["w2"] = weights["w2"].transpose(1, 0, 2, 3)
        groups = {"group": 2} if head == "Grouped" else {}  # no run of channels of one size is a product of its own
        if groups:
            weights["w2"] = weights["w2"][:, :16]
        nodes.append(helper.make_node(head if head.startswith("Conv") else "Conv", ["r", "w2"], ["y"], "head", **groups))
    if head in ("Transpose", "Softmax"):
        nodes[-1].output[0] = "raw"
        more = {"perm": [0, 2, 3, 1]} if head == "Transpose" else {"axis": 1}
        nodes.append(helper.make_node(head, ["raw"], ["y"], "last", **more))
        shape = [1, 16, 16, 12] if head == "Transpose" else shape
    constants = [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()]
    constants.append(numpy_helper.from_array(np.array([1, 32, 256]), "shape"))
    ports = [("x", [1, 3, 16, 16]), ("y", shape)]
    inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, s)] for name, s in ports)
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, constants), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [{"x": RNG.normal(size=(1, 3, 16, 16)).astype(np.float32)} for _ in range(8)]
    return support.save_samples(tmp_path_factory.mktemp("data") / "samples", samples)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("target", ["amd-npu:a8w8", "tflite-like", "ort-cpu"])
def test_what_is_lost_is_told(tmp_path: Path, data: Path, head: str, target: str) -> None:
    onnx.save(model(head), tmp_path / "m.onnx")
    options = ["--target", target, "--optimize-for", "size", "--preset", "balanced"]
    told = support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *options)
    samples = [dict(np.load(path)) for path in sorted(data.glob("*.npz"))]
    exact = np.stack([y[0] for y in support.outputs(support.load(tmp_path / "m.onnx"), samples)])
    found = np.stack([y[0] for y in support.outputs(support.load(tmp_path / "q.onnx"), samples)])
    axis = 1 if head not in ("Transpose", "MatMul") else -1
    scores = np.moveaxis(found, axis + 1 if axis > 0 else axis, 0)[4:]
    true = np.moveaxis(exact, axis + 1 if axis > 0 else axis, 0)[4:]
    dead = [
        c
        for c, (x, y) in enumerate(zip(true, scores, strict=True), 4)
        if 3 * np.sum((x - y) ** 2.0) > np.sum((x - x.mean()) ** 2.0)
    ]
    assert dead or head != "Grouped" or target == "ort-cpu"
    lost = told["accuracy"].get("lost_channels", [])
    if head == "Softmax" or not dead:
        assert not lost
        return
    assert any("axis" in line and "'y'" in line for line in lost), (dead, lost)
    assert told["outcome"]["answer"] == "look" and lost[0] in told["outcome"]["reasons"]
    assert exact.shape == found.shape


@pytest.mark.parametrize("head", ["Conv", "Grouped", "MatMul", "Transpose"])
def test_channels_of_another_size_have_their_own_figure(tmp_path: Path, data: Path, head: str) -> None:
    onnx.save(model(head), tmp_path / "m.onnx")
    options = ["--target", "amd-npu:a8w8", "--optimize-for", "size", "--preset", "balanced"]
    told = support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *options)["accuracy"]
    samples = [dict(np.load(data / name)) for name in told["sample_names"]]
    exact, found = (np.stack([y[0] for y in support.outputs(support.load(tmp_path / f), samples)]) for f in ("m.onnx", "q.onnx"))
    axis = next(a for a in (1, exact.ndim - 2) if exact.shape[a + 1] == 12)
    exact, found = (np.moveaxis(y.astype(np.float64), axis + 1, 0)[4:] for y in (exact, found))
    own = 10 * np.log10(np.square(exact).sum() / np.square(exact - found).sum())
    if own > told["sqnr_db"] - 3:  # as good as the output's own
        assert "worst_channels" not in told and head == "Transpose"
        return
    group = told["worst_channels"]
    assert (group["output"], group["axis"], group["first"], group["last"]) == ("y", axis, 4, 11)
    assert group["sqnr_db"] == pytest.approx(own, abs=0.1)


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_classes_that_change_are_told(bits: str, tmp_path: Path) -> None:
    """Of rows whose class is not the usual one, as of letters beside a recognizer's blank."""
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 0.3, (32, 12)).astype(np.float32)
    bias = np.float32([2.5] + [0] * 11)  # of the class that says nothing
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "m"),
        helper.make_node("Add", ["m", "b"], ["a"], "a"),
        helper.make_node("Softmax", ["a"], ["y"], "y", axis=-1),
    ]
    ports = [helper.make_tensor_value_info(name, 1, [40, n]) for name, n in (("x", 32), ("y", 12))]
    constants = [numpy_helper.from_array(logits, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", [{"x": rng.normal(0, 1, (40, 32)).astype(np.float32)} for _ in range(8)])
    options = ["--preset", "balanced", "--optimize-for", "size", "--weight-type", bits]
    told = support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *options)["outcome"]
    changed = [reason for reason in told["reasons"] if "have another class" in reason]
    expected, found = (support.load(tmp_path / f"{n}.onnx") for n in "mq")
    rows = [np.concatenate([s.run(None, x)[0] for x in support.load_samples(data)]) for s in (expected, found)]
    classes = [row.argmax(-1) for row in rows]
    read = (classes[0] != 0) | (classes[1] != 0)
    assert bool(changed) == (np.mean(classes[0][read] != classes[1][read]) > 0.02), (told, classes)
    assert bool(changed) == (bits == "int4") and (not changed or told["answer"] != "yes"), told


@pytest.mark.parametrize("name", ["states", "others"])
def test_a_state_that_the_model_reads_again_is_not_judged_by_channel(tmp_path: Path, name: str) -> None:
    """As Silero's "stateN", which it reads as "state", or with an axis more where a caller puts several into one array."""
    made = model("Grouped")
    graph = made.graph
    graph.node[-1].output[0] = "raw"
    graph.initializer.append(numpy_helper.from_array(np.array([0]), "first_axis"))
    graph.node.append(helper.make_node("Squeeze", [name, "first_axis"], ["before"], "squeeze"))
    graph.node.append(helper.make_node("Add", ["raw", "before"], ["stateN"], "add"))
    graph.output[0].name = "stateN"
    graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 12, 16, 16]))
    onnx.save(made, tmp_path / "m.onnx")
    zeros = np.zeros((1, 1, 12, 16, 16), np.float32)
    samples = [{"x": RNG.normal(size=(1, 3, 16, 16)).astype(np.float32), name: zeros} for _ in range(8)]
    data = support.save_samples(tmp_path / "data", samples)
    told = support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, "--target", "amd-npu:a8w8", "--preset", "balanced")
    assert bool(told["accuracy"].get("lost_channels")) == (name == "others"), told["accuracy"]
