"""Folders of sound as samples: the result is that of the same values as arrays."""

import wave

import numpy as np
import onnx
import pytest
import support
from graphs import Builder
from onnx import TensorProto
from support import Path

LENGTH = 64
RATE = 16000
BAD_INPUT = 3


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = Builder()
    value = b.add("Relu", b.add("Conv", b.add("Unsqueeze", "x", b.constant("axes", [1], np.int64)), b.weight("w", 8, 1, 5)))
    output = b.add("Gemm", b.add("Flatten", value), b.weight("head", 8 * (LENGTH - 4), 4))
    onnx.save(b.model({"x": (TensorProto.FLOAT, ["N", LENGTH])}, [output]), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def save(path: Path, values: np.ndarray, rate: int = RATE) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(values.astype("<i2").tobytes())


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    folder = tmp_path / "clips"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for n, frames in enumerate((LENGTH, 3 * LENGTH + 7, LENGTH // 2)):
        save(folder / f"{n}.wav", rng.normal(0, 4000, frames).round())
    return folder


def array_of(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        values = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    whole = max(len(values) // LENGTH, 1) * LENGTH
    return np.resize(np.pad(values, (0, LENGTH)), whole).reshape(-1, LENGTH)


def test_result_is_that_of_arrays(model: Path, clips: Path, tmp_path: Path) -> None:
    data = support.save_samples(tmp_path / "arrays", [{"x": array_of(path)} for path in sorted(clips.iterdir())])
    report = support.quantize(model, tmp_path / "sound.onnx", clips, "--batch-size", 1)
    support.quantize(model, tmp_path / "arrays.onnx", data, "--batch-size", 1)
    assert (tmp_path / "sound.onnx").read_bytes() == (tmp_path / "arrays.onnx").read_bytes()
    assert report["samples"] == 5
    assert any(f"{RATE} Hz" in note for note in report["notes"]), report["notes"]


def test_rates_must_agree(model: Path, clips: Path, tmp_path: Path) -> None:
    save(clips / "9.wav", np.ones(LENGTH), rate=8000)
    result = support.detent("quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", clips)
    assert result.returncode == BAD_INPUT
    assert "9.wav" in result.stderr and "8000 Hz" in result.stderr, result.stderr
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("last", [True, False])
def test_channels_first_and_last(channels: int, last: bool, tmp_path: Path) -> None:
    """[N, L, C], as Keras and TensorFlow export it, and [N, C, L]."""
    b = Builder()
    value = b.add("Transpose", "x", perm=[0, 2, 1]) if last else "x"
    output = b.add(
        "Gemm", b.add("Flatten", b.add("Conv", value, b.weight("w", 8, channels, 5))), b.weight("head", 8 * (LENGTH - 4), 4)
    )
    shape = ["N", LENGTH, channels] if last else ["N", channels, LENGTH]
    onnx.save(b.model({"x": (TensorProto.FLOAT, shape)}, [output]), tmp_path / "model.onnx")
    rng = np.random.default_rng(0)
    (tmp_path / "clips").mkdir()
    samples = []
    for n in range(3):
        values = rng.normal(0, 4000, (LENGTH, channels)).round().astype("<i2")
        with wave.open(str(tmp_path / "clips" / f"{n}.wav"), "wb") as file:
            file.setparams((channels, 2, RATE, 0, "NONE", ""))
            file.writeframes(values.tobytes())
        row = values.astype(np.float32) / 32768
        samples.append({"x": (row if last else row.T)[None].copy()})
    data = support.save_samples(tmp_path / "arrays", samples)
    support.quantize(tmp_path / "model.onnx", tmp_path / "sound.onnx", tmp_path / "clips")
    support.quantize(tmp_path / "model.onnx", tmp_path / "arrays.onnx", data)
    assert (tmp_path / "sound.onnx").read_bytes() == (tmp_path / "arrays.onnx").read_bytes()
