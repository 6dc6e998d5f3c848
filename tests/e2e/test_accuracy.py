"""Trained models: the task's score with detent's model beside that with ONNX Runtime's quantize_static."""

import subprocess
import sys

import numpy as np
import onnxruntime as ort
import pytest
import support
from support import Config, Path

# Formats whose products no CPU saturates, so that the scores mean the same everywhere.
FORMATS = {"ppocr_cls": Config("uint8", "uint8", per_channel=False), "opennsfw": Config(reduce_range=True)}
SAMPLES, HELD_BACK = 16, 120


def run(model: Path, array: np.ndarray, output: int) -> np.ndarray:
    session = support.load(model)
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: array[i : i + 1]})[output] for i in range(len(array))])


def score(task: str, folder: Path, train: Path, results: np.ndarray, path: Path) -> float:
    np.save(path, results)
    command = [sys.executable, support.TASKS, "accuracy", task, folder, train, path]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def median_sqnr(expected: np.ndarray, found: np.ndarray) -> float:
    """Of single samples, in dB."""
    return float(np.median([support.sqnr([[a]], [[b]]) for a, b in zip(expected, found, strict=True)]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("task", FORMATS)
def test_score(task: str, tmp_path: Path) -> None:
    config = FORMATS[task]
    folder = support.prepare_task(task, tmp_path / "task")
    paths = {"float": folder / "model.onnx", "ours": tmp_path / "ours.onnx", "theirs": tmp_path / "theirs.onnx"}
    report = support.quantize(
        paths["float"],
        paths["ours"],
        folder / "calibration",
        "--set",
        f"prepared-output={tmp_path / 'p.onnx'}",
        "--samples",
        SAMPLES,
        *config.options(),
    )
    assert report["samples"] == SAMPLES
    support.peer_quantize(tmp_path / "p.onnx", paths["theirs"], support.load_samples(folder / "calibration")[:SAMPLES], config)

    output = len(ort.InferenceSession(paths["float"]).get_outputs()) - 1  # the demo adds the features as the last one
    test = np.load(folder / "test.npy")[:HELD_BACK]
    np.save(folder / "labels.npy", np.load(folder / "labels.npy")[:HELD_BACK])
    results = {name: run(path, test, output) for name, path in paths.items()}
    train = tmp_path / "train.npy"
    if (folder / "train.npy").exists():
        np.save(train, run(paths["float"], np.load(folder / "train.npy"), output))
    scores = {name: score(task, folder, train, found, tmp_path / f"{name}.npy") for name, found in results.items()}
    # Of the typical sample: ranges agree to their last bits, which decide how single values round, and where a sample's
    # answer tips over, its noise is most of that of all.
    noise = {name: median_sqnr(results["float"], found) for name, found in results.items() if name != "float"}
    print(task, scores, noise)  # for pytest -s
    assert scores["float"] > 0.85, "the task itself"
    assert scores["ours"] >= scores["float"] - 0.1, scores
    assert scores["ours"] >= scores["theirs"] - 0.02, scores
    assert noise["ours"] >= noise["theirs"] - 1, noise
