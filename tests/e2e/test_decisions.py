"""Values that decide how many elements others have, and random numbers: forms of such a model are compared where they
decide alike."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path

RNG = np.random.default_rng(41)
BOXES = 48


def node(op_type: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), op_type.lower() + "." + outputs.split()[0], **attributes)


def after_scores(kind: str) -> list[onnx.NodeProto]:
    """From `boxes` (1 x BOXES x 4) and `scores` (1 x 1 x BOXES) to `y`, of as many rows as the scores say."""
    flat = [node("Reshape", "scores flat", "s"), node("Reshape", "boxes rows", "b")]
    above = [*flat, node("Greater", "s half", "keep")]
    match kind:
        case "NonMaxSuppression":
            return [
                node("NonMaxSuppression", "boxes scores most overlap least", "chosen"),
                node("Gather", "chosen two", "index", axis=1),
                node("Squeeze", "index one", "rows_of"),
                node("Gather", "boxes rows_of", "y", axis=1),
            ]
        case "NonZero":
            return [*above, node("NonZero", "keep", "places"), node("Transpose", "places", "p"), node("GatherND", "b p", "y")]
        case "Compress":
            return [*above, node("Compress", "b keep", "y", axis=0)]
        case "TopK":
            count = [node("Cast", "keep", "kept", to=7), node("ReduceSum", "kept", "k")]
            return [*above, *count, node("TopK", "s k", "best places"), node("Gather", "b places", "y")]
        case "Range":  # durations
            return [
                *flat,
                node("Mul", "s four", "d"),
                node("Ceil", "d", "frames"),
                node("ReduceSum", "frames", "sum", keepdims=0),
                node("Cast", "sum", "end", to=7),
                node("Range", "zero end step", "times"),
                node("Mod", "times boxes_n", "place"),
                node("Gather", "b place", "y"),
            ]
        case "Slice":
            count = [node("Cast", "keep", "kept", to=7), node("ReduceSum", "kept", "k")]
            return [*above, *count, node("Slice", "b zeros k", "y")]
        case "If":
            body = helper.make_graph([node("Neg", "b", "negated")], "then", [], [info("negated", [BOXES, 4])])
            other = helper.make_graph([node("Relu", "b", "positive")], "else", [], [info("positive", [BOXES, 4])])
            any_of = [node("ReduceMax", "s", "top", keepdims=0), node("Greater", "top half", "cond")]
            return [*flat, *any_of, node("If", "cond", "y", then_branch=body, else_branch=other)]
    raise ValueError(kind)


def info(name: str, shape: list, element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def weight(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def save(path: Path, nodes: list[onnx.NodeProto], outputs: list, constants: dict[str, np.ndarray]) -> Path:
    read = {name for n in nodes for name in n.input}
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items() if name in read]
    graph = helper.make_graph(nodes, "g", [info("x", [1, 8, 64])], outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path


CONSTANTS = {
    "w": weight(16, 8, 3),
    "wb": weight(4, 16, 17),
    "ws": 2 * weight(1, 16, 17),
    "flat": np.array([BOXES]),
    "rows": np.array([BOXES, 4]),
    "most": np.array([20]),
    "overlap": np.array([0.5], np.float32),
    "least": np.array([0.4], np.float32),
    "half": np.array(0.5, np.float32),
    "four": np.array(4, np.float32),
    "zero": np.array(0),
    "zeros": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "step": np.array(1),
    "boxes_n": np.array(BOXES),
}


def detector(path: Path, kind: str) -> Path:
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1]),
        node("Relu", "c", "f"),
        node("Conv", "f wb", "corners"),
        node("Transpose", "corners", "boxes", perm=[0, 2, 1]),
        node("Conv", "f ws", "logits"),
        node("Sigmoid", "logits", "scores"),
    ]
    return save(path, nodes + after_scores(kind), [info("y", None)], CONSTANTS)


def drawing(path: Path, kind: str) -> Path:
    """Random numbers between products."""
    makes = {
        "RandomNormalLike": [node("RandomNormalLike", "f", "n"), node("Add", "f n", "g")],
        "RandomNormal": [node("RandomNormal", "", "n", shape=[1, 16, 64]), node("Add", "f n", "g")],
        "RandomUniformLike": [node("RandomUniformLike", "f", "n"), node("Mul", "f n", "g")],
        "RandomUniform": [node("RandomUniform", "", "n", shape=[1, 16, 64]), node("Mul", "f n", "g")],
        "Bernoulli": [node("Sigmoid", "f", "p"), node("Bernoulli", "p", "n"), node("Mul", "f n", "g")],
        "Multinomial": [
            node("Reshape", "f matrix", "m"),
            node("Multinomial", "m", "places", sample_size=64, dtype=7),
            node("Cast", "places", "n", to=1),
            node("Unsqueeze", "n zeros", "n3"),
            node("Add", "f n3", "g"),
        ],
        "Dropout": [node("Dropout", "f half training", "g")],
    }[kind]
    nodes = [node("Conv", "x w", "c", pads=[1, 1]), node("Relu", "c", "f"), *makes, node("Conv", "g wb", "y")]
    constants = {**CONSTANTS, "matrix": np.array([16, 64]), "training": np.array(True)}
    return save(path, nodes, [info("y", [1, 4, 48])], constants)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [{"x": RNG.standard_normal((1, 8, 64)).astype(np.float32)} for _ in range(6)]
    return support.save_samples(tmp_path_factory.mktemp("decisions") / "samples", samples)


def compared(original: Path, quantized: Path, data: Path) -> dict:
    result = support.detent("compare", original, quantized, "--calibration-data", data, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


SIZES = ["NonMaxSuppression", "NonZero", "Compress", "TopK", "Range", "Slice", "If"]
RANDOM = ["RandomNormalLike", "RandomNormal", "RandomUniformLike", "RandomUniform", "Bernoulli", "Multinomial", "Dropout"]
FORMS = [["--preset", "balanced"], ["--preset", "plain"], ["--preset", "balanced", "--target", "tensorrt"]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", FORMS, ids=["balanced", "plain", "tensorrt"])
@pytest.mark.parametrize("kind", SIZES)
def test_results_of_sizes_that_depend_on_values_are_judged(tmp_path: Path, data: Path, kind: str, options: list[str]) -> None:
    model = detector(tmp_path / "m.onnx", kind)
    told = support.quantize(model, tmp_path / "q.onnx", data, *options)
    assert any("sizes depend on values" in note for note in told["notes"]), told["notes"]
    result = compared(model, tmp_path / "q.onnx", data)
    assert result["outputs"][0]["sqnr_db"] > 25
    if "accuracy" in told and told["accuracy"]:
        assert told["accuracy"]["sqnr_db"] > 25
    verified = support.detent("verify", model, tmp_path / "q.onnx", "--calibration-data", data, "--target", "ort-cpu", "--json")
    assert verified.returncode == 0, verified.stderr
    ort.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"]).run(None, dict(np.load(data / "000.npz")))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", RANDOM)
def test_models_that_draw_random_numbers_are_compared_with_the_same_ones(tmp_path: Path, data: Path, kind: str) -> None:
    model = drawing(tmp_path / "m.onnx", kind)
    told = support.quantize(model, tmp_path / "q.onnx", data, "--preset", "balanced")
    assert any("draws random numbers" in note for note in told["notes"]), told["notes"]
    assert told["accuracy"]["sqnr_db"] > 18
    assert compared(model, tmp_path / "q.onnx", data)["outputs"][0]["sqnr_db"] > 18
    verified = support.detent("verify", model, tmp_path / "q.onnx", "--calibration-data", data, "--target", "ort-cpu", "--json")
    assert verified.returncode == 0, verified.stderr
    assert all((output["deployed"]["sqnr_db"] or 0) > 18 for output in json.loads(verified.stdout)["outputs"])


def test_random_numbers_are_the_same_in_each_run(tmp_path: Path, data: Path) -> None:
    """But the written model goes on to draw its own."""
    model = drawing(tmp_path / "m.onnx", "RandomNormalLike")
    written = []
    for i, options in enumerate(([], ["--workers", "2"], ["--set", "segments=3", "--set", "memory-level=2"])):
        support.quantize(model, tmp_path / f"{i}.onnx", data, "--preset", "balanced", *options)
        written.append((tmp_path / f"{i}.onnx").read_bytes())
    assert written[0] == written[1] == written[2]
    nodes = onnx.load(tmp_path / "0.onnx").graph.node
    assert not [a.name for n in nodes if n.op_type == "RandomNormalLike" for a in n.attribute if a.name == "seed"]


def test_rows_of_the_best_are_compared_in_one_order(tmp_path: Path) -> None:
    """Rows of nearly equal scores change places, and nothing else: no accuracy is lost by that."""
    rng = np.random.default_rng(1)
    weights = {"w": (32, 64), "boxes": (64, 4), "scores": (64, 1)}
    constants = [numpy_helper.from_array(rng.normal(0, 0.2, shape).astype(np.float32), name) for name, shape in weights.items()]
    constants += [numpy_helper.from_array(np.array([n]), name) for name, n in {"k": 12, "axis": 1}.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "h"),
        helper.make_node("Relu", ["h"], ["r"], "r"),
        helper.make_node("MatMul", ["r", "boxes"], ["b"], "b"),
        helper.make_node("MatMul", ["r", "scores"], ["s"], "s"),
        helper.make_node("Squeeze", ["s", "axis"], ["one"], "one"),
        helper.make_node("TopK", ["one", "k"], ["best", "places"], "topk", axis=0),
        helper.make_node("Gather", ["b", "places"], ["y"], "pick", axis=0),
    ]
    ports = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [100, 32]), ("y", [12, 4]), ("best", [12]))]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ports[:1], ports[1:], constants), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", [{"x": rng.normal(0, 1, (100, 32)).astype(np.float32)} for _ in range(8)])
    report = support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, "--preset", "balanced", "--optimize-for", "size")
    assert report["accuracy"]["sqnr_db"] > 30 and report["outcome"]["answer"] == "yes", report["outcome"]
    assert any("in which order (TopK 'topk')" in note for note in report["notes"])
    told = json.loads(
        support.detent("compare", tmp_path / "m.onnx", tmp_path / "q.onnx", "--calibration-data", data, "--json").stdout
    )
    assert all(output["sqnr_db"] > 30 for output in told["outputs"])
