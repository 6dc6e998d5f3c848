"""Weights that nobody asked to tune: when gptq runs by itself, what it is worth, and that it goes away where it does not help."""

import graphs
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto
from support import Path

BALANCED = ["--preset", "balanced", "--threads", 2]
FOUR_BITS = [*BALANCED, "--weight-type", "int4"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = support.prepare_task("ppocr_cls", tmp_path_factory.mktemp("task") / "ppocr_cls")
    return folder / "model.onnx", folder / "calibration"


def product(folder: Path, channels: list[np.ndarray]) -> tuple[Path, Path]:
    """One product, and a sample of rows for each of these covariances' square roots."""
    rng = np.random.default_rng(3)
    b = graphs.Builder()
    x = b.add("MatMul", "x", b.constant("w", rng.standard_normal((64, 24)).astype(np.float32)), name="product")
    onnx.save(b.model({"x": (TensorProto.FLOAT, [8, 64])}, [x]), folder / "model.onnx")
    samples = [{"x": (rng.standard_normal((8, 64)) @ root).astype(np.float32)} for root in channels]
    return folder / "model.onnx", support.save_samples(folder / "data", samples)


def test_what_goes_together_is_rounded_together(tmp_path: Path) -> None:
    mixed = 0.2 * np.eye(64) + np.random.default_rng(4).standard_normal((64, 64)) @ np.diag(0.8 ** np.arange(64))
    model, data = product(tmp_path, [mixed] * 48)
    options = [*FOUR_BITS, "--set", "equalize=off", "--samples", 32]
    report = support.quantize(model, tmp_path / "default.onnx", data, *options)
    tuned = report["accuracy"]["tuned"]
    assert tuned["kept"]
    assert tuned["error_after"] < 0.8 * tuned["error_before"]
    support.quantize(model, tmp_path / "asked.onnx", data, *options, "--finetune", "gptq")
    assert support.sha256(tmp_path / "default.onnx") == support.sha256(tmp_path / "asked.onnx")
    off = support.quantize(model, tmp_path / "off.onnx", data, *options, "--finetune", "nearest")
    assert report["accuracy"]["sqnr_db"] > off["accuracy"]["sqnr_db"] + 1
    assert "tuned" not in off["accuracy"]
    others = support.load_samples(data)[32:]
    exact = support.outputs(support.load(model), others)
    after, before = (
        support.sqnr(exact, support.outputs(support.check_model(tmp_path / name), others)) for name in ("default.onnx", "off.onnx")
    )
    assert after > before + 1, (after, before)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [
        [*FOUR_BITS, "--samples", 7],
        [*FOUR_BITS, "--samples", 16, "--set", "sensitivity=off"],
        [*FOUR_BITS, "--samples", 16, "--set", "sensitivity=report"],
        [*BALANCED, "--samples", 16, "--activation-type", "uint16"],
    ],
    ids=["too few samples", "nothing measured", "only told", "near enough"],
)
def test_where_it_is_left(trained: tuple[Path, Path], tmp_path: Path, options: list[object]) -> None:
    model, data = trained
    report = support.quantize(model, tmp_path / "q.onnx", data, *options)
    assert "layers" not in report
    support.quantize(model, tmp_path / "nearest.onnx", data, *options, "--finetune", "nearest")
    assert support.sha256(tmp_path / "q.onnx") == support.sha256(tmp_path / "nearest.onnx")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options", [["--set", "segments=3", "--set", "memory-level=2"], ["--memory-budget", "400MiB", "--workers", 2]], ids=str
)
def test_budgets_change_nothing(trained: tuple[Path, Path], tmp_path: Path, options: list[object]) -> None:
    common = [*FOUR_BITS, "--samples", 24]
    report = support.quantize(trained[0], tmp_path / "plain.onnx", trained[1], *common)
    assert "tuned" in report["accuracy"]
    support.quantize(trained[0], tmp_path / "other.onnx", trained[1], *common, *options)
    assert support.sha256(tmp_path / "plain.onnx") == support.sha256(tmp_path / "other.onnx")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("point", ["finetune.solved=kill@5", "finetune.sample=kill@40"])
def test_killed_while_it_tunes(trained: tuple[Path, Path], tmp_path: Path, point: str) -> None:
    common = [*FOUR_BITS, "--samples", 24]
    support.quantize(trained[0], tmp_path / "whole.onnx", trained[1], *common)
    resumed = support.resumed_after_kill(point, *trained, tmp_path, *common)
    assert support.sha256(resumed) == support.sha256(tmp_path / "whole.onnx")


@pytest.mark.full
def test_too_little_memory_leaves_out_what_nobody_asked_for(trained: tuple[Path, Path], tmp_path: Path) -> None:
    options = [*FOUR_BITS, "--samples", 16, "--memory-budget", "60MiB"]
    said = support.quantize(trained[0], tmp_path / "q.onnx", trained[1], *options)
    assert any(note.startswith("weights are not tuned: ") for note in said["notes"]), said["notes"]
    support.quantize(trained[0], tmp_path / "nearest.onnx", trained[1], *options, "--finetune", "nearest")
    assert support.sha256(tmp_path / "q.onnx") == support.sha256(tmp_path / "nearest.onnx")
    command = ["quantize", trained[0], "-o", tmp_path / "asked.onnx", "--calibration-data", trained[1], *options]
    refused = support.detent(*command, "--finetune", "gptq")
    assert refused.returncode == 4, refused.stderr
    assert not (tmp_path / "asked.onnx").exists()


def test_what_others_do_not_gain_from_goes(tmp_path: Path) -> None:
    """The samples that are held back have nothing in common with those that weights are fitted to."""
    seen, unseen = (np.diag([s] * 32 + [1 - s] * 32) for s in (1.0, 0.001))
    model, data = product(tmp_path, [unseen if i % 8 == 7 else seen for i in range(16)])
    report = support.quantize(model, tmp_path / "q.onnx", data, *FOUR_BITS, "--set", "equalize=off")
    assert report["accuracy"]["tuned"]["kept"] is False
    assert "layers" not in report
    support.quantize(model, tmp_path / "off.onnx", data, *FOUR_BITS, "--set", "equalize=off", "--finetune", "nearest")
    assert support.sha256(tmp_path / "q.onnx") == support.sha256(tmp_path / "off.onnx")
