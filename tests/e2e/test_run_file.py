"""--save-config: a file that makes the run again."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import onnx
import pytest
import support
from graphs import cnn_samples, small_cnn, transformer


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    onnx.save(small_cnn(batch=1), tmp_path / "m.onnx")
    support.save_samples(tmp_path / "data", cnn_samples())
    return tmp_path


def again(folder: pathlib.Path, *options: object) -> subprocess.CompletedProcess[str]:
    """From another folder, with what the file says alone."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    command = [str(support.DETENT.resolve()), "quantize", "--config", str(folder / "run.yaml"), *map(str, options)]
    return subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    "options",
    [
        ["--method", "percentile", "--set", "percentile=99.9", "--per-tensor"],
        ["--op-types", "Conv,Relu,MaxPool", "--set", "tensor-method=relu1.out=minmax", "--set", "tensor-range=relu2.out=-1,1"],
        ["--shape", "x:1x3x16x16", "--set", "activation-symmetric", "--no-bench"],
    ],
)
def test_the_same_bytes_come_of_the_file(folder: pathlib.Path, options: list[object]) -> None:
    given = os.path.relpath(folder / "m.onnx"), os.path.relpath(folder / "data")
    result = support.detent(
        "quantize",
        given[0],
        "-o",
        folder / "q.onnx",
        "--calibration-data",
        given[1],
        *options,
        "--save-config",
        folder / "run.yaml",
        "--json",
    )
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)["config"]
    assert told["model"] == str(folder / "m.onnx") and "save-config" not in told
    assert told["model-fingerprint"] in (folder / "run.yaml").read_text()
    first = support.sha256(folder / "q.onnx")
    (folder / "q.onnx").unlink()
    assert again(folder).returncode == 0
    assert support.sha256(folder / "q.onnx") == first
    assert again(folder, "-o", folder / "other.onnx").returncode == 0  # the command line takes precedence
    assert support.sha256(folder / "other.onnx") == first


def test_another_model_is_refused(folder: pathlib.Path) -> None:
    saved = ["--calibration-data", folder / "data", "--save-config", folder / "run.yaml"]
    assert support.detent("quantize", folder / "m.onnx", "-o", folder / "q.onnx", *saved).returncode == 0
    onnx.save(transformer(), folder / "m.onnx")
    before = support.sha256(folder / "q.onnx")
    result = again(folder)
    assert result.returncode == 3 and "is not the one that this run was made with" in result.stderr
    assert result.stderr.count("\n") == 1 and support.sha256(folder / "q.onnx") == before


def test_what_cannot_be_written(folder: pathlib.Path) -> None:
    for file in [folder / "q.onnx", folder / "m.onnx", folder / "none" / "run.yaml"]:
        result = support.detent(
            "quantize", folder / "m.onnx", "-o", folder / "q.onnx", "--calibration-data", folder / "data", "--save-config", file
        )
        assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr
        assert not (folder / "q.onnx").exists()
    failed = support.detent(
        "quantize",
        folder / "m.onnx",
        "-o",
        folder / "q.onnx",
        "--calibration-data",
        folder / "no",
        "--save-config",
        folder / "run.yaml",
    )
    assert failed.returncode == 3 and not (folder / "run.yaml").exists()


def test_a_file_without_a_model_says_what_is_missing(folder: pathlib.Path) -> None:
    (folder / "run.yaml").write_text("method: mse\n")
    result = again(folder, "-o", folder / "q.onnx")
    assert result.returncode == 2 and "MODEL is required" in result.stderr
