"""What the preset `balanced` does before it leaves anything in float: channel ranges equalized, another range for a value."""

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from onnx import TensorProto, numpy_helper
from support import Path, Sample

FLOAT = TensorProto.FLOAT
BALANCED = ["--preset", "balanced"]
LARGE = [3, 11, 20]  # channels


def normalized(residual: bool) -> onnx.ModelProto:
    """Three channels of a normalization are 60 times as large as the others; the product takes as much of them as of all."""
    b = graphs.Builder(21)
    gamma = np.ones(32)
    gamma[LARGE] = 60
    weight = b.rng.normal(0, 0.3, (32, 24))
    weight[LARGE] /= 60
    x = b.add("LayerNormalization", "x", b.constant("gamma", gamma), b.weight("beta", 32), name="norm")
    y = b.add("MatMul", x, b.constant("w", weight), name="product")
    if residual:
        y = b.add("Concat", y, b.add("Tanh", x), axis=-1)
    return b.model({"x": (FLOAT, [4, 32])}, [y])


def gated() -> onnx.ModelProto:
    """The same between two convolutions, behind a gate that is wider for some channels."""
    b = graphs.Builder(22)
    width, second = np.ones((16, 1, 1)), b.rng.normal(0, 0.2, (8, 16, 1, 1))
    width[[2, 9]] *= 60
    second[:, [2, 9]] /= 60
    x = b.add("Sigmoid", b.add("Conv", "x", b.weight("w1", 16, 3, 3, 3, scale=0.3), name="first"))
    x = b.add("Mul", x, b.constant("width", width), name="gate")
    return b.model({"x": (FLOAT, [1, 3, 10, 10])}, [b.add("Conv", x, b.constant("w2", second), name="second")])


def spectrum() -> onnx.ModelProto:
    """Two results of a convolution are 60 times as large as the others, and what reads them takes as much of each."""
    b = graphs.Builder(26)
    first, gains = b.rng.normal(0, 0.3, (16, 3, 3, 3)), np.full((16, 1, 1), 60.0)
    first[[2, 9]] *= 60
    gains[[2, 9]] = 1
    x = b.add("Conv", "x", b.constant("w1", first), b.weight("b1", 16), name="first")
    x = b.add("Tanh", b.add("Mul", b.add("Neg", x), b.constant("gains", gains / 60)))
    return b.model({"x": (FLOAT, [1, 3, 10, 10])}, [b.add("Conv", x, b.weight("w2", 8, 16, 1, 1), name="second")])


def rectified(more: bool = False) -> onnx.ModelProto:
    """The same between two convolutions with a Relu, of which the second makes up for it."""
    b = graphs.Builder(27)
    first, second = b.rng.normal(0, 0.3, (16, 3, 3, 3)), b.rng.normal(0, 0.2, (8, 16, 1, 1))
    first[[2, 9]] *= 60
    second[:, [2, 9]] /= 60
    x = b.add("Relu", b.add("Conv", "x", b.constant("w1", first), b.weight("b1", 16), name="first"), name="relu")
    x = b.add("Conv", x, b.constant("w2", second), name="second")
    if more:
        x = b.add("Conv", x, b.weight("w3", 4, 8, 1, 1), name="third")
    return b.model({"x": (FLOAT, [1, 3, 10, 10])}, [x])


def samples_of(shape: list[int], count: int = 16) -> list[Sample]:
    rng = np.random.default_rng(23)
    return [{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(count)]


def saved(folder: Path, model: onnx.ModelProto, samples: list[Sample]) -> tuple[Path, Path]:
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx", support.save_samples(folder / "data", samples)


def sqnr(model: Path, quantized: Path, samples: list[Sample]) -> float:
    found = support.outputs(support.check_model(quantized), samples)
    return support.sqnr(support.outputs(support.load(model), samples), found)


def remedied(folder: Path, network: onnx.ModelProto, samples: list[Sample], value: str) -> tuple[dict, float, float]:
    """The report where the channels of this value alone are equalized, and the SQNR of the results with that and without."""
    model, data = saved(folder, network, samples)
    report = support.quantize(model, folder / "q.onnx", data, *BALANCED)
    support.quantize(model, folder / "off.onnx", data, *BALANCED, "--set", "sensitivity=off")  # nor does anything fall back
    assert [e["value"] for e in report["accuracy"]["equalized"]] == [value]
    return report, *(sqnr(model, folder / name, samples) for name in ("q.onnx", "off.onnx"))


def test_a_normalization_takes_the_factors_in(tmp_path: Path) -> None:
    report, alike, off = remedied(tmp_path, normalized(residual=False), samples_of([4, 32]), "norm.out")
    assert report["accuracy"]["equalized"][0]["error_after"] < 0.1 * report["accuracy"]["equalized"][0]["error_before"]
    assert alike > 35 > off + 6
    graph = onnx.load(tmp_path / "q.onnx").graph
    assert "Mul" not in {node.op_type for node in graph.node}
    gamma = next(numpy_helper.to_array(t) for t in graph.initializer if t.name == "gamma")
    assert gamma.max() / np.median(gamma) < 10


def test_other_readers_get_the_value_as_it_was(tmp_path: Path) -> None:
    samples = samples_of([4, 32])
    model, data = saved(tmp_path, normalized(residual=True), samples)
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED)
    assert [e["value"] for e in report["accuracy"]["equalized"]] == ["norm.out"]
    assert report["activations"]["norm.out_equalized"]["method"] == "minmax"
    reference, found = (np.concatenate([o[0] for o in support.outputs(support.check_model(m), samples)])
                        for m in (model, tmp_path / "q.onnx"))  # fmt: skip
    assert np.array_equal(reference[:, 24:], found[:, 24:]), "the part that no product made"
    assert np.abs(reference[:, :24] - found[:, :24]).max() < 0.05 * np.abs(reference[:, :24]).max()


def test_channels_of_convolutions(tmp_path: Path) -> None:
    _, alike, off = remedied(tmp_path, gated(), samples_of([1, 3, 10, 10]), "gate.out")
    assert alike > off + 3


def test_results_of_convolutions(tmp_path: Path) -> None:
    report, alike, off = remedied(tmp_path, spectrum(), samples_of([1, 3, 10, 10]), "first.out")
    assert report["activations"]["first.out_equalized"]["method"] == "mse", "its range is what it was"
    assert report["accuracy"]["integer_macs"] == 1
    assert alike > off + 6
    readers = {node.input[0]: node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}
    assert readers["first.out"] == "Neg", "whoever reads the value finds it under its name"


def test_a_word_where_the_types_do_not_do(tmp_path: Path) -> None:
    model, data = saved(tmp_path, normalized(residual=False), samples_of([4, 32]))
    found = {}
    for options in ([], ["--set", "equalize=off"]):
        report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, *options)
        words = [note for note in report["notes"] if "dB with uint8 activations and int8 weights" in note]
        assert bool(words) == (report["accuracy"]["sqnr_db"] < 30)
        found[bool(words)] = words
    assert found[True], "one with a word, one without"
    assert found[False] == []
    assert "before GPTQ" in found[True][0], "as far away as that, they are tuned"
    assert "--accuracy-fallback int16" in found[True][0]
    assert "MatMul 'product' makes up to 100 % of an output's error for 100.0 % of the multiplications" in found[True][0]
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, "--set", "equalize=off", "--weight-type", "int4")
    assert any("dB with uint8 activations and int4 weights" in note for note in report["notes"])
    assert not any("8 bits" in note for note in report["notes"])


def test_channels_between_convolutions(tmp_path: Path) -> None:
    _, alike, off = remedied(tmp_path, rectified(), samples_of([1, 3, 10, 10]), "relu.out")
    assert "Mul" not in {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}
    assert alike > off + 6


def gates() -> onnx.ModelProto:
    """Convolutions with x * Sigmoid(x), and with x * Clip(x + 3, 0, 6) / 6 scaled and shifted, as exporters write them."""
    b = graphs.Builder(33)
    for number in ((3, 3), (6, 6), (0, 0), (0.4, 0.4), (0.1, -0.1)):
        b.constant(f"c{number[0]}" if number[0] != 0.1 else "shift", number[1])
    x = "x"
    for i in range(4):
        x = b.add("Conv", x, b.weight(f"w{i}", 16, 16, 3, 3), b.weight(f"b{i}", 16), pads=[1] * 4)
        if i % 2:
            clipped = b.add("Clip", b.add("Add", x, "c3"), "c0", "c6")
            x = b.add("Div", b.add("Mul", x, clipped), "c6", name=f"gated{i}")
            x = b.add("Add", b.add("Mul", x, "c0.4"), "shift")
        else:
            x = b.add("Mul", x, b.add("Sigmoid", x), name=f"gated{i}")
    return b.model({"x": (FLOAT, [1, 16, 10, 10])}, [b.add("Conv", x, b.weight("last", 16, 16, 3, 3), name="last")])


def test_gates_in_integers(tmp_path: Path) -> None:
    samples = samples_of([1, 16, 10, 10])
    model, data = saved(tmp_path, gates(), samples)
    # A coarse input makes so much of the error that gates do not show.
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, "--set", "tensor-range=x=-30,30")
    assert "4 SiLU or HardSwish nodes quantized: that costs little accuracy" in report["notes"]
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(tmp_path / "q.onnx", options)
    types = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    counts = {t: types.count(t) for t in ("QLinearConv", "QLinearSigmoid", "QLinearMul", "QLinearAdd", "HardSigmoid")}
    # A HardSigmoid is a sum, and so is the constant that a padded convolution reads with it.
    assert counts == {"QLinearConv": 5, "QLinearSigmoid": 2, "QLinearMul": 4, "QLinearAdd": 3, "HardSigmoid": 0}
    assert sqnr(model, tmp_path / "q.onnx", samples) > report["accuracy"]["sqnr_db"] - 3
    unmeasured = support.quantize(model, tmp_path / "f.onnx", data, *BALANCED, "--set", "sensitivity=off")
    assert not any("HardSwish" in note for note in unmeasured["notes"])
    assert "HardSwish" in {node.op_type for node in onnx.load(tmp_path / "f.onnx").graph.node}


def test_float_weights_stay_float_in_the_runtime(tmp_path: Path) -> None:
    """ONNX Runtime rounds weights between two quantized values by one scale for all, if it may."""
    samples = samples_of([1, 3, 10, 10])
    model, data = saved(tmp_path, rectified(more=True), samples)
    options = [*BALANCED, "--set", "sensitivity=off"]
    support.quantize(model, tmp_path / "q.onnx", data, *options, "--exclude-nodes", "second")
    assert any(node.op_type == "Max" for node in onnx.load(tmp_path / "q.onnx").graph.node)
    deployed = support.outputs(support.check_model(tmp_path / "q.onnx"), samples)
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    written = support.outputs(ort.InferenceSession(tmp_path / "q.onnx", plain), samples)
    assert support.sqnr(written, deployed) > 40


@pytest.mark.parametrize("options", [["--set", "segments=2", "--set", "memory-level=2"], ["--workers", 2]], ids=str)
@pytest.mark.parametrize("kind", ["product", "convolution"])
def test_budgets_change_nothing(tmp_path: Path, kind: str, options: list[object]) -> None:
    network, shape = (normalized(residual=True), [4, 32]) if kind == "product" else (spectrum(), [1, 3, 10, 10])
    model, data = saved(tmp_path, network, samples_of(shape))
    support.quantize(model, tmp_path / "one.onnx", data, *BALANCED)
    support.quantize(model, tmp_path / "other.onnx", data, *BALANCED, *options)
    assert support.sha256(tmp_path / "one.onnx") == support.sha256(tmp_path / "other.onnx")


def test_statistics_from_a_file_give_the_same(tmp_path: Path) -> None:
    model, data = saved(tmp_path, normalized(residual=True), samples_of([4, 32]))
    support.quantize(model, tmp_path / "one.onnx", data, *BALANCED)
    statistics = support.calibrate(model, tmp_path / "s", data, *BALANCED)
    support.quantize(model, tmp_path / "other.onnx", data, *BALANCED, "--statistics", statistics)
    assert support.sha256(tmp_path / "one.onnx") == support.sha256(tmp_path / "other.onnx")


def test_a_value_takes_the_range_that_does_least_harm(tmp_path: Path) -> None:
    """The best range for the squared error of a value cuts off the few large elements that the result is made of."""
    b = graphs.Builder(24)
    weight = b.rng.normal(0, 0.01, (64, 8))
    weight[0] = 1
    model = b.model({"x": (FLOAT, [1024, 64])}, [b.add("MatMul", "x", b.constant("w", weight), name="product")])
    rng = np.random.default_rng(25)
    samples = [{"x": rng.normal(size=(1024, 64)).astype(np.float32)} for _ in range(16)]
    for sample in samples:
        sample["x"][:, 0] = 0
        sample["x"][0, 0] = 12
    path, data = saved(tmp_path, model, samples)
    report = support.quantize(path, tmp_path / "q.onnx", data, *BALANCED, "--set", "equalize=off")
    support.quantize(path, tmp_path / "mse.onnx", data, *BALANCED, "--set", "equalize=off", "--method", "mse")
    choice = report["accuracy"]["methods"][0]
    assert choice["value"] == "x"
    assert choice["error_after"] < choice["error_before"]
    assert report["activations"]["x"]["method"] == choice["method"] != "mse"
    assert sqnr(path, tmp_path / "q.onnx", samples) > sqnr(path, tmp_path / "mse.onnx", samples) + 3


def test_a_report_only_tells(tmp_path: Path) -> None:
    model, data = saved(tmp_path, normalized(residual=False), samples_of([4, 32]))
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, "--set", "sensitivity=report")
    assert report["accuracy"]["equalized"] == report["accuracy"]["methods"] == []
