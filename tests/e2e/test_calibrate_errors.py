"""Statistics and options of calibration that do not fit: the right exit code, one line that helps, and nothing written."""

import json
import shutil

import graphs
import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT, USAGE, Place
from support import Path, calibrate

POWERS = ["--set", "power-of-two-scale", "--set", "activation-symmetric"]


@pytest.fixture
def statistics(model: Path, data: Path, place: Place) -> Path:
    return calibrate(model, place.inputs / "all.stats", data)


def test_statistics_of_another_model(place: Place, model: Path, data: Path, statistics: Path) -> None:
    other = place.inputs / "other.onnx"
    onnx.save(graphs.small_cnn(opset=18), other)
    line = place.refuses(BAD_INPUT, "another model", "quantize", other, "-o", place.output, "--statistics", statistics)
    assert "all.stats" in line
    assert "'model.onnx'" in line
    assert "other.onnx" in line
    theirs = calibrate(other, place.inputs / "theirs.stats", data)
    line = place.refuses(BAD_INPUT, "one model", "calibrate", "--merge", statistics, theirs, "-o", place.output)
    assert "theirs.stats" in line
    assert "'other.onnx'" in line
    assert "'model.onnx'" in line


def test_renamed_and_touched_models_are_the_same(place: Place, model: Path, statistics: Path) -> None:
    copy = place.inputs / "copy.onnx"
    shutil.copyfile(model, copy)
    assert support.detent("quantize", copy, "-o", place.output, "--statistics", statistics).returncode == 0


def test_weights_beside_the_model_count(place: Place, model: Path, data: Path) -> None:
    split, weights = place.inputs / "split.onnx", place.inputs / "split.bin"
    onnx.save_model(onnx.load(model), split, save_as_external_data=True, location=weights.name, size_threshold=0)
    statistics = calibrate(split, place.inputs / "split.stats", data)
    changed = bytearray(weights.read_bytes())
    changed[10] ^= 1
    weights.write_bytes(changed)
    place.refuses(BAD_INPUT, "another model", "quantize", split, "-o", place.output, "--statistics", statistics)


def test_statistics_of_other_samples(place: Place, model: Path, statistics: Path) -> None:
    cases = {"fewer": graphs.cnn_samples(3), "others": graphs.cnn_samples(seed=9), "more": graphs.cnn_samples(5)}
    for name, samples in cases.items():
        data = support.save_samples(place.inputs / name, samples)
        place.refused(BAD_INPUT, f"all.stats.*other samples than.*{name}", model, data, "--statistics", statistics)
    with_more = ["--statistics", statistics, "--samples", 4]
    assert support.quantize(model, place.output, place.inputs / "more", *with_more)["samples"] == 4


def test_merging_a_file_twice(place: Place, model: Path, statistics: Path) -> None:
    copy = place.inputs / "copy.stats"
    shutil.copyfile(statistics, copy)
    part = calibrate(model, place.inputs / "part.stats", support.save_samples(place.inputs / "some", graphs.cnn_samples(2, seed=8)))
    for files in ([statistics, statistics], [statistics, copy], [part, statistics, copy]):
        place.refuses(BAD_INPUT, "same samples", "calibrate", "--merge", *files, "-o", place.output)


def test_merging_unlike_statistics(place: Place, model: Path, data: Path, statistics: Path) -> None:
    for name, options, says in (
        ("bare", ["--no-histogram"], "--no-histogram"),
        ("votes", ["--set", "most-common"], "--set most-common"),
        ("some", ["--nodes", "conv_b"], "other tensors"),
    ):
        other = calibrate(model, place.inputs / f"{name}.stats", data, *options)
        place.refuses(BAD_INPUT, f"{name}.stats.*{says}", "calibrate", "--merge", statistics, other, "-o", place.output)


def test_files_that_are_no_statistics(place: Place, model: Path, statistics: Path) -> None:
    whole = statistics.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    files = {
        "cut": (whole[:-7], "damaged"),
        "flipped": (bytes(flipped), "damaged"),
        "newer": (whole[:8] + b"\x02" + whole[9:], "version 2"),
        "empty": (b"", "empty|short"),
        "model": (model.read_bytes(), "not a statistics file"),
    }
    good = support.detent("quantize", model, "-o", place.output, "--statistics", statistics)
    assert good.returncode == 0
    place.output.unlink()
    for name, (content, says) in files.items():
        path = place.inputs / f"{name}.stats"
        path.write_bytes(content)
        for command in (["quantize", model, "--statistics", path], ["calibrate", "--merge", statistics, path]):
            assert f"{name}.stats" in place.refuses(BAD_INPUT, says, *command, "-o", place.output)
    missing = ["--statistics", place.inputs / "none.stats"]
    place.refuses(BAD_INPUT, "none.stats.*No such file", "quantize", model, "-o", place.output, *missing)


def test_statistics_that_lack_something(place: Place, model: Path, data: Path, statistics: Path) -> None:
    def refuses(file: Path, says: str, *options: object) -> None:
        place.refuses(BAD_INPUT, says, "quantize", model, "-o", place.output, "--statistics", file, *options)

    bare = calibrate(model, place.inputs / "bare.stats", data, "--no-histogram")
    for method in ("percentile", "layerwise-percentile", "mse", "entropy"):
        refuses(bare, "tensor 'x' hold no histogram; .*--no-histogram", "--method", method)
    assert support.detent("quantize", model, "-o", place.output, "--statistics", bare, "--set", "average").returncode == 0
    place.output.unlink()
    refuses(statistics, "'x'.*most samples; calibrate with --set most-common", "--method", "mse", "--set", "most-common", *POWERS)
    some = calibrate(model, place.inputs / "some.stats", data, "--nodes", "conv_b")
    refuses(some, "lack tensor 'x'.*same --preset", "--method", "minmax")
    assert support.detent("quantize", model, "-o", place.output, "--statistics", some, "--nodes", "conv_b").returncode == 0


def test_more_statistics_than_are_needed(place: Place, model: Path, data: Path, statistics: Path) -> None:
    """What else is observed keeps the runtime from fusing some operators, so the last bits may differ."""
    some = ["--nodes", "head", "--method", "entropy"]
    result = support.detent("quantize", model, "-o", place.output, "--statistics", statistics, "--json", *some)
    assert (result.returncode, result.stderr) == (0, "")
    direct = support.quantize(model, place.out / "direct.onnx", data, *some)["activations"]
    found = json.loads(result.stdout)["activations"]
    assert found.keys() == direct.keys()
    for name in direct:
        assert found[name]["scale"] == pytest.approx(direct[name]["scale"], rel=1e-4), name


def test_options_that_make_no_sense(place: Place, model: Path, data: Path, statistics: Path) -> None:
    samples = ["--calibration-data", data]
    for says, *arguments in (
        ("MODEL is required", "calibrate", *samples),
        ("--calibration-data is required", "calibrate", model),
        ("--merge takes statistics files only", "calibrate", model, "--merge", statistics),
        ("--merge takes statistics files only", "calibrate", "--merge", statistics, *samples),
        ("--set most-common needs histograms", "calibrate", model, *samples, "--set", "most-common", "--no-histogram"),
        ("--workers", "calibrate", model, *samples, "--workers", "0"),
        ("no node of .* matches", "calibrate", model, *samples, "--nodes", "nobody"),
        ("no node of type 'MaxPoool'", "calibrate", model, *samples, "--set", "passthrough-op-types=MaxPoool"),
        ("--calibration-data or --statistics", "quantize", model),
        ("--set most-common chooses between", "quantize", model, *samples, "--set", "most-common"),
        ("percentile must be above 0", "quantize", model, *samples, "--set", "percentile=0"),
        ("--set entropy-bins", "quantize", model, *samples, "--set", "entropy-bins=100"),
        ("'best' is not one of its values; choose from: minmax, percentile", "quantize", model, *samples, "--method", "best"),
        ("'x=1' is not MIN,MAX|'1' is not MIN,MAX", "quantize", model, *samples, "--set", "tensor-range=x=1"),
        ("'x' is not NAME=VALUE", "quantize", model, *samples, "--set", "tensor-method=x"),
        ("2 to 1 is not a range for 'x'", "quantize", model, *samples, "--set", "tensor-range=x=2,1"),
        ("'nobody' is not an activation", "quantize", model, *samples, "--set", "tensor-method=nobody=mse"),
    ):
        place.refuses(USAGE, says, *arguments, "-o", place.output)
    place.refuses(USAGE, "would overwrite", "calibrate", "--merge", statistics, "-o", statistics)
    place.refuses(USAGE, "would overwrite.*which is read", "quantize", model, "-o", statistics, "--statistics", statistics)
    place.refuses(USAGE, "would overwrite", "calibrate", model, *samples, "-o", model)
    place.refuses(USAGE, "calibration sample", "calibrate", model, *samples, "-o", next(data.iterdir()))
    place.refuses(USAGE, "does not exist", "calibrate", model, *samples, "-o", place.out / "nowhere" / "s.stats")


@pytest.mark.parametrize("workers", [1, 3])
def test_nan_in_a_sample(place: Place, model: Path, workers: int) -> None:
    samples = graphs.cnn_samples(6)
    samples[4]["x"][0, 1, 2, 3] = np.nan
    data = support.save_samples(place.inputs / "nan", samples)
    arguments = ["calibrate", model, "-o", place.output, "--calibration-data", data, "--workers", workers]
    place.refuses(BAD_INPUT, "004.npz.*'x'.*1 NaN.*--set allow-nonfinite", *arguments)
    assert support.detent(*arguments, "--set", "allow-nonfinite").returncode == 0
    options = ["--statistics", place.output, "--method", "mse", "--set", "allow-nonfinite"]
    report = support.quantize(model, place.out / "m.onnx", data, *options)
    assert all(np.isfinite([found["min"], found["max"]]).all() for found in report["activations"].values())
