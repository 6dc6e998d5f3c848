"""What the preset `balanced` does before it leaves anything in float: channels made alike, another range for a value."""

import graphs
import numpy as np
import pytest
import support
from support import Path, Sample

import onnx
from onnx import TensorProto, numpy_helper

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


def samples_of(shape: list[int], count: int = 16) -> list[Sample]:
    rng = np.random.default_rng(23)
    return [{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(count)]


def saved(folder: Path, model: onnx.ModelProto, samples: list[Sample]) -> tuple[Path, Path]:
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx", support.save_samples(folder / "data", samples)


def sqnr(model: Path, quantized: Path, samples: list[Sample]) -> float:
    found = support.outputs(support.check_model(quantized), samples)
    return support.sqnr(support.outputs(support.load(model), samples), found)


def test_a_normalization_takes_the_factors_in(tmp_path: Path) -> None:
    samples = samples_of([4, 32])
    model, data = saved(tmp_path, normalized(residual=False), samples)
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED)
    support.quantize(model, tmp_path / "off.onnx", data, *BALANCED, "--equalize", "off")
    assert [e["value"] for e in report["accuracy"]["equalized"]] == ["norm.out"]
    assert report["accuracy"]["equalized"][0]["error_after"] < 0.1 * report["accuracy"]["equalized"][0]["error_before"]
    assert sqnr(model, tmp_path / "q.onnx", samples) > 35 > sqnr(model, tmp_path / "off.onnx", samples) + 6
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
    samples = samples_of([1, 3, 10, 10])
    model, data = saved(tmp_path, gated(), samples)
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED)
    support.quantize(model, tmp_path / "off.onnx", data, *BALANCED, "--equalize", "off")
    assert [e["value"] for e in report["accuracy"]["equalized"]] == ["gate.out"]
    assert sqnr(model, tmp_path / "q.onnx", samples) > sqnr(model, tmp_path / "off.onnx", samples) + 3


@pytest.mark.parametrize("options", [["--segments", 2, "--memory-level", 2], ["--workers", 2]], ids=str)
def test_budgets_change_nothing(tmp_path: Path, options: list[object]) -> None:
    model, data = saved(tmp_path, normalized(residual=True), samples_of([4, 32]))
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
    report = support.quantize(path, tmp_path / "q.onnx", data, *BALANCED, "--equalize", "off")
    support.quantize(path, tmp_path / "mse.onnx", data, *BALANCED, "--equalize", "off", "--method", "mse")
    choice = report["accuracy"]["methods"][0]
    assert choice["value"] == "x"
    assert choice["error_after"] < choice["error_before"]
    assert report["activations"]["x"]["method"] == choice["method"] != "mse"
    assert sqnr(path, tmp_path / "q.onnx", samples) > sqnr(path, tmp_path / "mse.onnx", samples) + 3


def test_a_report_only_tells(tmp_path: Path) -> None:
    model, data = saved(tmp_path, normalized(residual=False), samples_of([4, 32]))
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, "--sensitivity", "report")
    assert report["accuracy"]["equalized"] == report["accuracy"]["methods"] == []
