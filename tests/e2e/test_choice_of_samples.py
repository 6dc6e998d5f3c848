"""What is measured, and so the written bytes, follows from what samples hold: not from their order, files or batches."""

import graphs
import numpy as np
import onnx
import pytest
import support
from support import Path

ROWS = 16


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, str]:
    """A model whose remedies depend on the samples that they are tried on, its rows, and the hash that comes of them."""
    folder = tmp_path_factory.mktemp("given")
    model = graphs.small_cnn()
    for tensor in model.graph.initializer:
        if tensor.name == "w2":  # uneven channels: something to equalize, to leave in float and to tune
            weights = onnx.numpy_helper.to_array(tensor) * np.logspace(-1.5, 1, 8)[None, :, None, None]
            tensor.CopyFrom(onnx.numpy_helper.from_array(weights.astype(np.float32), tensor.name))
    onnx.save(model, folder / "model.onnx")
    rng = np.random.default_rng(5)
    rows = (rng.normal(size=(ROWS, 3, 16, 16)) * rng.uniform(0.01, 3, (ROWS, 3, 1, 1))).astype(np.float32)
    return folder / "model.onnx", rows, digest(folder, folder / "model.onnx", rows, 1)


def save(folder: Path, rows: np.ndarray, each: int) -> Path:
    folder.mkdir()
    for at in range(0, len(rows), each):
        np.savez(folder / f"{at:02}.npz", x=rows[at : at + each])
    return folder


def run(*command: object) -> None:
    preset = [] if "--merge" in command else ["--preset", "balanced"]
    result = support.detent(*command, *preset)
    assert result.returncode == 0, result.stderr


def digest(folder: Path, model: Path, rows: np.ndarray, each: int, *options: object) -> str:
    data = save(folder / "data", rows, each)
    run("quantize", model, "-o", folder / "out.onnx", "--calibration-data", data, *options)
    return support.sha256(folder / "out.onnx")


@pytest.mark.parametrize(
    ("each", "options"),
    [(1, []), (1, ["--workers", 2]), (8, []), (5, []), (8, ["--batch-size", 2]), (2, ["--set", "segments=3"])],
    ids=str,
)
def test_order_files_and_batches_do_not_matter(
    given: tuple[Path, np.ndarray, str], each: int, options: list, tmp_path: Path
) -> None:
    model, rows, expected = given
    shuffled = rows[np.random.default_rng(len(options) + each).permutation(ROWS)]
    assert digest(tmp_path, model, shuffled, each, *options) == expected


def test_merged_statistics_do_not_matter(given: tuple[Path, np.ndarray, str], tmp_path: Path) -> None:
    model, rows, expected = given
    parts = []
    for name, part in (("b", rows[6:]), ("a", rows[:6])):
        parts.append(tmp_path / f"{name}.stats")
        run("calibrate", model, "-o", parts[-1], "--calibration-data", save(tmp_path / name, part, 1))
    run("calibrate", "--merge", *parts, "-o", tmp_path / "all.stats")
    assert digest(tmp_path, model, rows, 1, "--statistics", tmp_path / "all.stats") == expected


def test_other_samples_are_told_apart(given: tuple[Path, np.ndarray, str], tmp_path: Path) -> None:
    """The tests above would not see a choice that samples have no part in."""
    model, rows, expected = given
    assert digest(tmp_path, model, rows[: ROWS // 2], 1) != expected
