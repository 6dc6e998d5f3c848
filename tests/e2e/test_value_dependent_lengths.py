"""Models whose values decide how long other values are, as durations do in text to speech: the quantized model's differ."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path

CHANNELS = 8


def model() -> onnx.ModelProto:
    """What a first layer gives is summed up, and a second one sees a ramp of that length."""
    rng = np.random.default_rng(3)
    tensors: list[onnx.TensorProto] = []

    def constant(name: str, value: np.ndarray) -> str:
        tensors.append(numpy_helper.from_array(value, name))
        return name

    def weight(name: str, *shape: int) -> str:
        return constant(name, (rng.standard_normal(shape) * 0.3).astype(np.float32))

    zero, one = constant("zero", np.array(0, np.int64)), constant("one", np.array(1, np.int64))
    axes, column = constant("axes", np.array([0, 1], np.int64)), weight("column", 1, CHANNELS, 1)
    nodes = [
        helper.make_node("Conv", ["x", weight("w0", CHANNELS, CHANNELS, 3)], ["durations"], pads=[1, 1], name="first"),
        helper.make_node("Abs", ["durations"], ["positive"]),
        helper.make_node("ReduceSum", ["positive"], ["sum"], keepdims=0),
        helper.make_node("Ceil", ["sum"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["length"], to=TensorProto.INT64),
        helper.make_node("Range", [zero, "length", one], ["steps"]),
        helper.make_node("Cast", ["steps"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", constant("slow", np.array(0.05, np.float32))], ["slowly"]),
        helper.make_node("Sin", ["slowly"], ["wave"]),
        helper.make_node("Unsqueeze", ["wave", axes], ["row"]),
        helper.make_node("Mul", ["row", column], ["waves"]),
        helper.make_node("Conv", ["waves", weight("w1", CHANNELS, CHANNELS, 3)], ["inner"], pads=[1, 1], name="second"),
        helper.make_node("Relu", ["inner"], ["relu"]),
        helper.make_node("Conv", ["relu", weight("w2", 4, CHANNELS, 3)], ["outer"], pads=[1, 1], name="third"),
        helper.make_node("ReduceMean", ["outer"], ["y"], axes=[2], keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, CHANNELS, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph(nodes, "durations", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def lengths(path: Path, samples: list[dict[str, np.ndarray]]) -> list[int]:
    shown = onnx.load(path)
    shown.graph.output.append(helper.make_tensor_value_info("length", TensorProto.INT64, None))
    session = ort.InferenceSession(shown.SerializeToString())
    return [int(session.run(["length"], sample)[0]) for sample in samples]


@pytest.mark.parametrize(
    "options",
    [
        ["--finetune", "gptq"],
        ["--finetune", "adaround", "--set", "num-iterations=60"],
        ["--finetune", "adaquant", "--set", "num-iterations=60"],
        ["--finetune", "adaround", "--set", "num-iterations=60", "--set", "drop-ratio=0.5"],
        ["--finetune", "adaround", "--set", "num-iterations=60", "--set", "finetune-form=streamed"],
        ["--preset", "balanced"],
    ],
    ids=lambda options: "-".join(options[1::2]),
)
def test_layers_behind_them_are_tuned(tmp_path: Path, options: list[str]) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    rng = np.random.default_rng(4)
    samples = [{"x": rng.standard_normal((1, CHANNELS, 64)).astype(np.float32)} for _ in range(12)]
    data = support.save_samples(tmp_path / "data", samples)
    told = support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *options)
    if options[0] == "--finetune":
        assert [layer["name"] for layer in told["layers"]] == ["first", "second", "third"]
        assert lengths(tmp_path / "m.onnx", samples) != lengths(tmp_path / "q.onnx", samples), "nothing was tried"
    found = [support.outputs(support.load(tmp_path / name), samples) for name in ("m.onnx", "q.onnx")]
    assert support.sqnr(*found) > 20
