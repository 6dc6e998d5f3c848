"""--format: one word makes what its options make, byte for byte."""

from __future__ import annotations

import pathlib
import subprocess

import onnx
import pytest
from graphs import picked_rows, picked_samples
from support import DETENT, save_samples, sha256

NAMES = {
    "int8": [],
    "int8-dynamic": ["--activations", "dynamic"],
    "uint8-dynamic": ["--activations", "dynamic", "--weight-type", "uint8"],
    "int8-qoperator": ["--quant-format", "qoperator"],
    "a16w8": ["--activation-type", "uint16"],
    "q8": ["--weights-only", "--bits", 8],
    "q4": ["--weights-only", "--bits", 4],
    "q2": ["--weights-only", "--bits", 2],
    "q4f16": ["--weights-only", "--bits", 4, "--float", 16],
    "fp16": ["--float", 16],
    "bf16": ["--float", "bf16"],
    "fp8": ["--weight-type", "float8e4m3fn", "--activation-type", "float8e4m3fn"],
    "mxfp8": ["--weights-only", "--weight-type", "float8e4m3fn", "--set", "scale-type=float8e8m0"],
    "mxfp4": ["--weights-only", "--weight-type", "float4e2m1", "--set", "scale-type=float8e8m0"],
    "nvfp4": ["--weights-only", "--weight-type", "float4e2m1", "--set", "scale-type=float8e4m3fn"],
    "bfp16": ["--set", "block-float=bfp16"],
}
NEED_NO_SAMPLES = ("q8", "q4", "q2", "q4f16", "mxfp8", "mxfp4", "nvfp4", "int8-dynamic", "uint8-dynamic")
CHOOSE_BY_SPEED = ("int8", "int8-qoperator", "a16w8")  # unless size counts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("model")
    onnx.save(picked_rows(), made / "m.onnx")
    save_samples(made / "data", picked_samples(rows=8))
    return made


def run(folder: pathlib.Path, output: pathlib.Path, *options: object) -> subprocess.CompletedProcess[str]:
    command = [DETENT, "quantize", folder / "m.onnx", "-o", output, "--no-bench", *options]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_a_format_is_what_its_options_make(folder: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    beside = [] if name in NEED_NO_SAMPLES else ["--calibration-data", folder / "data"]
    beside += ["--optimize-for", "size"] if name in CHOOSE_BY_SPEED else []
    for output, options in [("a.onnx", ["--format", name]), ("b.onnx", NAMES[name])]:
        result = run(folder, tmp_path / output, *options, *beside)
        assert result.returncode == 0, result.stderr
    assert sha256(tmp_path / "a.onnx") == sha256(tmp_path / "b.onnx")


def test_what_says_something_else_is_refused(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for options, says in [
        (["--format", "q4", "--bits", 2], "--bits and --format q4 both say what comes out; leave out one of them"),
        (["--format", "int8", "--float", 16], "give --float 32"),
        (["--format", "q5"], "q4"),
    ]:
        result = run(folder, tmp_path / "q.onnx", *options, "--calibration-data", folder / "data")
        assert result.returncode == 2 and says in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    ("elsewhere", "here"),
    [("int4", "q4"), ("AWQ", "q4"), ("gptq", "q4"), ("w4a16", "q4"), ("w8a8", "int8"), ("float16", "fp16"), ("fp4", "mxfp4")],
)
def test_names_that_others_have(elsewhere: str, here: str, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    command = [DETENT, "quantize", folder / "m.onnx", "-o", tmp_path / "q.onnx", "--format", elsewhere]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 2 and f"that is {here} here: " in told.stderr, told.stderr
