"""Fine-tuning end to end: better than nearest rounding by an independent judge, on every kind of layer, and refusals."""

import os

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path, Sample

FAST = ["--set", "num-iterations=60"]


def correlated(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Neighbouring values go together, as in images: where rounding can be traded between weights."""
    noise = rng.standard_normal(shape).astype(np.float32)
    for axis in range(1, len(shape)):
        noise = noise + np.roll(noise, 1, axis) + 0.5 * np.roll(noise, 2, axis)
    return noise + 0.5


def layers_model() -> onnx.ModelProto:
    """One of each kind of layer: strides, uneven pads, dilation, groups, depthwise, transposed, 1-D, Gemm both ways, MatMul."""
    rng = np.random.default_rng(5)
    tensors, nodes = [], []

    def weight(name: str, *shape: int) -> str:
        tensors.append(numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name))
        return name

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    x = node("Conv", ["x", weight("w0", 12, 3, 3, 3), weight("b0", 12)], "conv", pads=[1, 0, 1, 2], strides=[2, 2])
    x = node("Relu", [x], "relu")
    x = node("Conv", [x, weight("w1", 12, 4, 3, 3)], "grouped", group=3, pads=[2, 2, 2, 2], dilations=[2, 2])
    x = node("Conv", [x, weight("w2", 12, 1, 3, 3), weight("b2", 12)], "depthwise", group=12, auto_pad="SAME_UPPER")
    x = node(
        "ConvTranspose",
        [x, weight("w3", 12, 4, 3, 3), weight("b3", 8)],
        "transposed",
        group=2,
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        output_padding=[1, 1],
    )
    x = node("GlobalAveragePool", [x], "pooled")
    tensors.append(numpy_helper.from_array(np.array([0, 8], np.int64), "shape"))
    x = node("Reshape", [x, "shape"], "flat")
    x = node("Gemm", [x, weight("w4", 16, 8), weight("b4", 16)], "gemm", transB=1, beta=0.5)
    x = node("Gemm", [x, weight("w5", 16, 10)], "gemm_plain")
    node("MatMul", [x, weight("w6", 10, 6)], "y")
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 16, 18])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "layers", [image], [out], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Sample]]:
    folder = tmp_path_factory.mktemp("layers")
    onnx.save(layers_model(), folder / "model.onnx")
    rng = np.random.default_rng(7)
    samples = [{"x": correlated(rng, (2, 3, 16, 18))} for _ in range(24)]
    return folder / "model.onnx", support.save_samples(folder / "data", samples[:16]), samples[16:]


def run(model: Path, samples: list[Sample]) -> np.ndarray:
    """Outputs with Q/DQ computed in float, so that kernels which saturate have no say."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return np.stack([session.run(None, s)[0] for s in samples])


INT4 = onnx.TensorProto.INT4


def error(model: Path, quantized: Path, samples: list[Sample]) -> float:
    return float(np.mean((run(model, samples) - run(quantized, samples)) ** 2))


@pytest.mark.parametrize("form", ["gram", "streamed"])
@pytest.mark.parametrize("rounding", ["adaround", "adaquant", "gptq"])
def test_every_kind_of_layer(layers: tuple[Path, Path, list[Sample]], rounding: str, form: str, tmp_path: Path) -> None:
    model, data, _ = layers
    if (rounding, form) == ("gptq", "streamed"):
        result = support.detent(
            "quantize",
            model,
            "-o",
            tmp_path / "q.onnx",
            "--calibration-data",
            data,
            "--finetune",
            rounding,
            "--set",
            f"finetune-form={form}",
        )
        assert result.returncode == 2 and "gptq" in result.stderr.lower()
        assert not (tmp_path / "q.onnx").exists()
        return
    report = support.quantize(model, tmp_path / "q.onnx", data, "--finetune", rounding, "--set", f"finetune-form={form}", *FAST)
    assert [layer["name"] for layer in report["layers"]] == [
        "conv",
        "grouped",
        "depthwise",
        "transposed",
        "gemm",
        "gemm_plain",
        "y",
    ]
    for layer in report["layers"]:
        assert layer["form"] == form
        assert layer["error_after"] <= layer["error_before"]
        assert layer["tuned"] == (layer["error_after"] < layer["error_before"])
    assert support.gain(report["layers"]) < 0.94


def test_low_precision_weights_gain_most(layers: tuple[Path, Path, list[Sample]], tmp_path: Path) -> None:
    """Seven bits and one scale for the whole tensor: rounding matters, and an independent runtime sees the gain."""
    model, data, fresh = layers
    coarse = ["--set", "weight-range=reduced", "--per-tensor", "--activation-type", "uint16"]
    support.quantize(model, tmp_path / "nearest.onnx", data, *coarse)
    nearest = error(model, tmp_path / "nearest.onnx", fresh)
    for rounding in ("gptq", "adaround"):
        support.quantize(model, tmp_path / f"{rounding}.onnx", data, *coarse, "--finetune", rounding)
        assert error(model, tmp_path / f"{rounding}.onnx", fresh) < 0.7 * nearest


def test_scales_and_float_parts_stay(layers: tuple[Path, Path, list[Sample]], tmp_path: Path) -> None:
    """Only integers of weights change; with --set update-bias those of biases too."""
    model, data, _ = layers
    support.quantize(model, tmp_path / "nearest.onnx", data)
    for name, options in (("weights", []), ("biases", ["--set", "update-bias"])):
        support.quantize(model, tmp_path / f"{name}.onnx", data, "--finetune", "gptq", *options)
        before = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "nearest.onnx").graph.initializer}
        after = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / f"{name}.onnx").graph.initializer}
        changed = {n for n in before if not np.array_equal(before[n], after[n])}
        assert before.keys() == after.keys() and changed
        allowed = {f"w{i}_quantized" for i in range(7)} | ({f"b{i}_quantized" for i in (0, 2, 3, 4)} if options else set())
        assert changed <= allowed
        assert bool(changed & {"b0_quantized", "b2_quantized", "b3_quantized", "b4_quantized"}) == bool(options)


def test_selection_and_heaviest(layers: tuple[Path, Path, list[Sample]], tmp_path: Path) -> None:
    model, data, _ = layers
    chosen = support.quantize(model, tmp_path / "a.onnx", data, "--finetune", "gptq", "--set", "finetune-nodes=^g.*")
    assert [layer["name"] for layer in chosen["layers"]] == ["grouped", "gemm", "gemm_plain"]
    chosen = support.quantize(model, tmp_path / "b.onnx", data, "--finetune", "gptq", "--set", "finetune-op-types=ConvTranspose")
    assert [layer["name"] for layer in chosen["layers"]] == ["transposed"]
    heaviest = support.quantize(model, tmp_path / "c.onnx", data, "--finetune", "adaround", "--set", "only-heaviest-layer", *FAST)
    assert len(heaviest["layers"]) == 1
    assert any("heaviest" in note and heaviest["layers"][0]["name"] in note for note in heaviest["notes"])


def test_input_from_far_before_the_layer(tmp_path: Path) -> None:
    """As a projection beside the three convolutions of a ResNet's first block: its input goes past the segments between."""
    rng = np.random.default_rng(2)
    tensors = [numpy_helper.from_array((rng.standard_normal((6, 6, 1, 1)) * 0.4).astype(np.float32), f"w{i}") for i in range(5)]
    nodes = [helper.make_node("Conv", ["x", "w0"], ["stem"], name="stem"), helper.make_node("Relu", ["stem"], ["start"])]
    value = "start"
    for i in (1, 2, 3):
        nodes += [
            helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], name=f"c{i}"),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"]),
        ]
        value = f"r{i}"
    nodes.append(helper.make_node("Conv", ["start", "w4"], ["beside"], name="beside"))
    nodes.append(helper.make_node("Add", [value, "beside"], ["y"]))
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6, 8, 8])
    graph = helper.make_graph(nodes, "block", [image], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", [{"x": correlated(rng, (1, 6, 8, 8))} for _ in range(9)])
    for level in (0, 1, 2):
        report = support.quantize(
            tmp_path / "m.onnx", tmp_path / f"{level}.onnx", data, "--finetune", "gptq", "--set", f"memory-level={level}"
        )
        assert {layer["name"] for layer in report["layers"]} == {"stem", "c1", "c2", "c3", "beside"}
        assert support.sha256(tmp_path / f"{level}.onnx") == support.sha256(tmp_path / "0.onnx")


def test_shared_weights_are_left_and_noted(tmp_path: Path) -> None:
    model = layers_model()
    extra = helper.make_node("MatMul", ["gemm_plain", "w6"], ["z"], name="z")
    model.graph.node.append(extra)
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "m.onnx")
    rng = np.random.default_rng(3)
    data = support.save_samples(tmp_path / "data", [{"x": correlated(rng, (2, 3, 16, 18))} for _ in range(4)])
    report = support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, "--finetune", "gptq")
    assert "y" not in [layer["name"] for layer in report["layers"]]
    assert any("several consumers" in note for note in report["notes"])


def test_trained_transformer_and_task(tmp_path: Path) -> None:
    """Attention projections are solved from one pass; the embedding does not get worse."""
    model = tmp_path / "model.onnx"
    onnx.save(graphs.transformer(), model)
    samples = graphs.transformer_samples()
    data = support.save_samples(tmp_path / "data", samples)
    report = support.quantize(model, tmp_path / "q.onnx", data, "--finetune", "gptq", "--op-types", "MatMul,Gemm")
    assert len(report["layers"]) >= 6 and sum(not layer["tuned"] for layer in report["layers"]) <= 1
    assert support.gain(report["layers"]) < 0.97  # judged on rows that are held back


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--finetune", "adaround", "--set", "finetune-nodes=nobody"], "nobody"),
        (["--finetune", "adaround", "--set", "finetune-op-types=Relu"], "Relu"),
        (["--finetune", "sgd"], "sgd"),
        (["--finetune", "adaround", "--set", "num-iterations=0"], "--set num-iterations"),
        (["--finetune", "adaround", "--set", "finetune-form=gram", "--set", "drop-ratio=0.5"], "--set drop-ratio"),
        (["--finetune", "gptq", "--set", "drop-ratio=0.5"], "--set drop-ratio"),
        (["--finetune", "adaround", "--set", "drop-ratio=7"], "--set drop-ratio"),
        (["--finetune", "adaround", "--set", "finetune-batch-size=-1"], "--set finetune-batch-size"),
        (["--finetune", "adaround", "--set", "learning-rate=0"], "--set learning-rate"),
        (["--finetune", "adaround", "--set", "beta-range=20,0"], "--set beta-range"),
    ],
)
def test_refusals(layers: tuple[Path, Path, list[Sample]], options: list[str], words: str, tmp_path: Path) -> None:
    model, data, _ = layers
    result = support.detent("quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", data, *options)
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and words in result.stderr
    assert not list(tmp_path.iterdir())


def test_without_the_plugin(layers: tuple[Path, Path, list[Sample]], tmp_path: Path) -> None:
    model, data, _ = layers
    environment = {**os.environ, "DETENT_CPU_PLUGIN": str(tmp_path / "missing.so")}
    result = support.detent(
        "quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", data, "--finetune", "gptq", env=environment
    )
    assert result.returncode == 5 and "missing.so" in result.stderr
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("command", ["inspect", "plan", "quantize"])
def test_a_gemm_with_a_turned_input_is_left_out(command: str, tmp_path: Path) -> None:
    """It has another number of rows than inputs, and is not tuned."""
    b = graphs.Builder(9)
    x = b.add("Transpose", b.add("MatMul", "x", b.weight("w", 32, 32), name="tuned"), perm=[1, 0])
    y = b.add("Gemm", x, b.weight("turned", 32, 24), transA=1, name="left_out")
    onnx.save(b.model({"x": (TensorProto.FLOAT, [6, 32])}, [y]), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "d", [{"x": b.rng.normal(size=(6, 32)).astype(np.float32)} for _ in range(8)])
    options = ["-o", tmp_path / "q.onnx", "--calibration-data", data, "--finetune", "gptq", "--no-bench"]
    result = support.detent(command, tmp_path / "m.onnx", *([] if command == "inspect" else options))
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    if command == "quantize":
        assert "Gemm 'left_out': not fine-tuned: transA or alpha is set" in result.notes
