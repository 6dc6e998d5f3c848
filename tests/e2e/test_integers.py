"""Integer products in ONNX Runtime, bit for bit beside their exact sums, on a CPU that adds them in saturating 16 bits."""

import json

import graphs
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto
from support import Path

FLOAT = TensorProto.FLOAT
INTEGERS = Path(__file__).with_name("integers.py")
PRODUCTS = ["odd_channels", "pointwise", "depthwise", "two_of_each_channel", "dilated", "matrix", "plain", "transposed"]
BALANCED = ["--preset", "balanced", "--set", "sensitivity=off"]


def differing(model: Path, samples: Path, env: dict[str, str]) -> dict[str, float]:
    """The share of each product's integers that are not the exact ones."""
    told = json.loads(support.python(env, INTEGERS, model, samples).stdout)
    assert all(told["compared"].values())
    return {name: told["differ"][name] / count for name, count in told["compared"].items()}


def large_weights() -> onnx.ModelProto:
    """All kinds of products, with weights near the largest and mostly of one sign: what saturates most. Each reads the input, since
    sums that saturated are small, and another product reads its results, which are integers therefore."""
    b = graphs.Builder(71)
    ends = []

    def weight(name: str, *shape: int) -> str:
        return b.constant(name, b.rng.uniform(0.8, 1, shape) * b.rng.choice([1, 1, 1, -1], shape))

    def conv(name: str, *shape: int, bias: bool = False, **attributes: object) -> None:
        biases = [b.weight(name + ".bias", shape[0])] * bias
        x = b.add("Conv", "x", weight(name + ".weight", *shape), *biases, name=name, **attributes)
        ends.append(b.add("Conv", x, b.weight(name + ".end", 2, shape[0], 1, 1), name=name + ".last"))

    def rows(op_type: str, name: str, *shape: int, **attributes: object) -> None:
        x = b.add("Reshape", "x", b.constant(name + ".shape", [-1, 255], np.int64))
        x = b.add(op_type, x, weight(name + ".weight", *shape), name=name, **attributes)
        ends.append(b.add("MatMul", x, b.weight(name + ".end", 33, 2), name=name + ".last"))

    conv("odd_channels", 10, 3, 3, 3, bias=True, group=5, pads=[1] * 4, strides=[2, 2])
    conv("pointwise", 12, 15, 1, 1)
    conv("depthwise", 15, 1, 3, 3, bias=True, group=15, pads=[1] * 4)
    conv("two_of_each_channel", 30, 1, 3, 3, group=15)
    conv("dilated", 8, 15, 3, 3, dilations=[2, 2], pads=[2] * 4)
    rows("MatMul", "matrix", 255, 33)
    rows("Gemm", "plain", 255, 33)
    rows("Gemm", "transposed", 33, 255, transB=1)
    return b.model({"x": (FLOAT, ["N", 15, 17, 16])}, ends)


@pytest.fixture(scope="module")
def worst(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("worst")
    onnx.save(large_weights(), folder / "model.onnx")
    rng = np.random.default_rng(72)
    samples = [{"x": rng.uniform(0.5, 1, (2, 15, 17, 16)).astype(np.float32)} for _ in range(4)]
    return folder / "model.onnx", support.save_samples(folder / "data", samples)


@pytest.mark.parametrize("granularity", ["--per-channel", "--per-tensor"])
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_pairs_never_saturate(
    worst: tuple[Path, Path], tmp_path: Path, old_cpu: dict[str, str], granularity: str, activations: str
) -> None:
    model, data = worst
    support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, granularity, "--activation-type", activations)
    wrong = differing(tmp_path / "q.onnx", data, old_cpu)
    assert set(PRODUCTS) <= wrong.keys()
    assert not any(wrong.values()), wrong


def test_the_full_range_saturates(worst: tuple[Path, Path], tmp_path: Path, old_cpu: dict[str, str]) -> None:
    """Else the others would prove nothing."""
    model, data = worst
    support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, "--set", "weight-range=full")
    wrong = differing(tmp_path / "q.onnx", data, old_cpu)
    assert [name for name in PRODUCTS if wrong[name] < 0.1] == ["depthwise"], wrong


@pytest.mark.parametrize("options", [[], ["--finetune", "adaround", "--set", "num-iterations=20"]])
def test_a_trained_model_is_exact(tmp_path: Path, old_cpu: dict[str, str], options: list[str]) -> None:
    rng = np.random.default_rng(73)
    samples = [{"x": rng.uniform(-1, 1, (1, 3, 48, 96)).astype(np.float32)} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    support.quantize(support.MODELS / "ppocr_cls.onnx", tmp_path / "q.onnx", data, *BALANCED, *options)
    wrong = differing(tmp_path / "q.onnx", data, old_cpu)
    assert len(wrong) > 40
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ([], False),
        (["--set", "weight-range=reduced"], False),
        (["--set", "weight-range=full"], True),
        (["--set", "weight-range=full", "--weight-type", "uint8"], False),
        (["--per-tensor", "--set", "weight-asymmetric"], True),
    ],
)
def test_weights_that_saturate_are_warned_of(
    worst: tuple[Path, Path], tmp_path: Path, old_cpu: dict[str, str], options: list[str], warned: bool
) -> None:
    model, data = worst
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, *options, env=old_cpu)
    assert any("saturate" in note for note in report["notes"]) == warned
