"""The same bytes, whatever changes that may not matter."""

from collections.abc import Callable

import graphs
import numpy as np
import onnx
import pytest
import support
from support import Path, Sample

Setup = tuple[Path, list[Sample], str]


@pytest.fixture(scope="module", params=["cnn", "transformer"])
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """A model, its samples, and the hash of what comes of them by default."""
    folder = tmp_path_factory.mktemp(request.param)
    model = folder / "model.onnx"
    cnn = request.param == "cnn"
    onnx.save(graphs.small_cnn() if cnn else graphs.transformer(), model)
    samples = graphs.cnn_samples(8) if cnn else graphs.transformer_samples()
    return model, samples, digest(model, support.save_samples(folder / "data", samples), folder / "first.onnx")


def digest(model: Path, data: Path, output: Path, *options: object) -> str:
    support.quantize(model, output, data, *options)
    return support.sha256(output)


@pytest.mark.parametrize(
    "options",
    [[], ["--threads", 1], ["--threads", 2], ["--workers", 2], ["--workers", 3, "--threads", 1]],
    ids=lambda options: " ".join(map(str, options)) or "again",
)
def test_options_that_do_not_matter(setup: Setup, options: list, tmp_path: Path) -> None:
    model, samples, expected = setup
    assert digest(model, support.save_samples(tmp_path / "data", samples), tmp_path / "out.onnx", *options) == expected


def test_profile_prepared_output_and_work_dir_do_not_matter(setup: Setup, tmp_path: Path) -> None:
    model, samples, expected = setup
    work = tmp_path / "work"
    work.mkdir()
    options = ["--profile", tmp_path / "profile.yaml", "--set", f"prepared-output={tmp_path / 'prepared.onnx'}", "--work-dir", work]
    assert digest(model, support.save_samples(tmp_path / "data", samples), tmp_path / "out.onnx", *options) == expected
    assert not list(work.iterdir())


def test_order_of_samples_does_not_matter(setup: Setup, tmp_path: Path) -> None:
    model, samples, expected = setup
    assert digest(model, support.save_samples(tmp_path / "data", samples[::-1]), tmp_path / "out.onnx") == expected


def test_path_of_the_output_does_not_matter(setup: Setup, tmp_path: Path) -> None:
    model, samples, expected = setup
    (tmp_path / "other").mkdir()
    assert digest(model, support.save_samples(tmp_path / "data", samples), tmp_path / "other" / "name.onnx") == expected


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A real network, its samples, and the samples in reverse."""
    folder = tmp_path_factory.mktemp("detector")
    rng = np.random.default_rng(11)
    samples = [{"x": rng.normal(size=(1, 3, 96, 128)).astype(np.float32)} for _ in range(2)]
    data = support.save_samples(folder / "data", samples), support.save_samples(folder / "turned", samples[::-1])
    return support.MODELS / "ppocr_det.onnx", *data


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threads", [1, 2])
def test_order_and_workers_with_a_real_network(detector: tuple[Path, Path, Path], threads: int, tmp_path: Path) -> None:
    model, data, turned = detector
    options = ["--threads", threads]
    digests = {
        digest(model, data, tmp_path / "a.onnx", *options),
        digest(model, turned, tmp_path / "b.onnx", *options),
        digest(model, data, tmp_path / "c.onnx", *options, "--workers", 2),
    }
    assert len(digests) == 1


def test_threads_with_a_real_network(detector: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """ONNX Runtime cuts large convolutions into pieces by its number of threads, and their sums are rounded by piece: ranges
    may differ in their last bits, and nothing else may."""
    model, data, _ = detector
    one, two = (support.quantize(model, tmp_path / f"{n}.onnx", data, "--threads", n)["activations"] for n in (1, 2))
    assert one.keys() == two.keys()
    for name, found in one.items():
        span = found["max"] - found["min"]
        assert abs(found["min"] - two[name]["min"]) <= 1e-5 * span + 1e-7, name
        assert abs(found["max"] - two[name]["max"]) <= 1e-5 * span + 1e-7, name


def save_together(folder: Path, rows: np.ndarray) -> Path:
    np.save(folder / "all.npy", rows)
    return folder / "all.npy"


def save_apart(folder: Path, rows: np.ndarray) -> Path:
    (folder / "apart").mkdir()
    for i, row in enumerate(rows):
        np.save(folder / "apart" / f"{i}.npy", row[None])
    return folder / "apart"


def save_without_batch_axis(folder: Path, rows: np.ndarray) -> Path:
    (folder / "rows").mkdir()
    for i, row in enumerate(rows):
        np.save(folder / "rows" / f"{i}.npy", row)
    return folder / "rows"


def save_in_threes(folder: Path, rows: np.ndarray) -> Path:
    (folder / "threes").mkdir()
    for i in range(0, len(rows), 3):
        np.savez_compressed(folder / "threes" / f"{i}.npz", x=rows[i : i + 3])
    return folder / "threes"


def save_by_input(folder: Path, rows: np.ndarray) -> Path:
    (folder / "named" / "x").mkdir(parents=True)
    np.save(folder / "named" / "x" / "0.npy", rows)
    return folder / "named"


def save_test_sets(folder: Path, rows: np.ndarray) -> Path:
    for i, row in enumerate(rows):
        target = folder / "sets" / f"test_data_set_{i}"
        target.mkdir(parents=True)
        (target / "input_0.pb").write_bytes(onnx.numpy_helper.from_array(row[None], "x").SerializeToString())
    return folder / "sets"


@pytest.mark.parametrize(
    "save", [save_together, save_apart, save_without_batch_axis, save_in_threes, save_by_input, save_test_sets]
)
def test_layout_of_the_data_does_not_matter(save: Callable[[Path, np.ndarray], Path], tmp_path: Path) -> None:
    """With a batch of one row each file layout gives the same samples."""
    model = tmp_path / "model.onnx"
    onnx.save(graphs.small_cnn(), model)
    samples = graphs.cnn_samples(7)
    expected = digest(model, support.save_samples(tmp_path / "data", samples), tmp_path / "expected.onnx")
    data = save(tmp_path, np.concatenate([sample["x"] for sample in samples]))
    assert digest(model, data, tmp_path / "out.onnx", "--batch-size", 1) == expected


def test_fixed_batch_is_cut_and_joined_alike(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(graphs.small_cnn(batch=4), model)
    rows = graphs.cnn_samples(1, rows=8)[0]["x"]
    saves = (save_together, save_apart, save_in_threes)
    digests = {digest(model, save(tmp_path, rows), tmp_path / f"{save.__name__}.onnx") for save in saves}
    assert len(digests) == 1
