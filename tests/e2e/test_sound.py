"""Folders of sound as samples: the result is that of the same values as arrays."""

import json
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


def with_rate_and_state(path: Path) -> Path:
    """A detector of speech in small: the waveform, its rate and a state."""
    b = Builder(3)
    value = b.add("Gemm", "x", b.weight("w", LENGTH, 8))
    rate = b.add("Div", b.add("Cast", "sr", to=TensorProto.FLOAT), b.constant("usual", float(RATE)))
    value = b.add("Add", b.add("Mul", value, rate), b.add("ReduceMean", "state", axes=[0], keepdims=0))
    inputs = {"sr": (TensorProto.INT64, []), "x": (TensorProto.FLOAT, ["N", LENGTH]), "state": (TensorProto.FLOAT, [2, "N", 8])}
    onnx.save(b.model(inputs, [b.add("Relu", b.add("MatMul", value, b.weight("head", 8, 4)))]), path)
    return path


@pytest.mark.full
def test_other_inputs_are_numbers_in_every_command(clips: Path, tmp_path: Path) -> None:
    model = with_rate_and_state(tmp_path / "detector.onnx")
    rows = [row[None] for path in sorted(clips.iterdir()) for row in array_of(path)]
    others = {"sr": np.array(RATE), "state": np.full((2, 1, 8), 0.5, np.float32)}
    data = support.save_samples(tmp_path / "arrays", [{"x": row, **others} for row in rows])
    given = ["--input", f"sr={RATE}", "--input", "state=0.5", "--batch-size", 1]
    report = support.quantize(model, tmp_path / "sound.onnx", clips, *given)
    support.quantize(model, tmp_path / "arrays.onnx", data)
    assert (tmp_path / "sound.onnx").read_bytes() == (tmp_path / "arrays.onnx").read_bytes()
    assert report["samples"] == len(rows)
    for command in (["compare", model, tmp_path / "sound.onnx"], ["verify", model, tmp_path / "sound.onnx", "--no-bench"]):
        told = [
            json.loads(support.detent(*command, "--calibration-data", d, *words, "--json").stdout)
            for d, words in ((clips, given), (data, []))
        ]
        assert told[0]["samples"] == told[1]["samples"] > 0
        assert told[0].get("outputs") == told[1].get("outputs")
    for command in (["plan", model], ["calibrate", model, "-o", tmp_path / "s.stats"]):
        assert support.detent(*command, "--calibration-data", clips, *given).returncode == 0
    timed = support.detent("bench", model, *given[:4], "--runs", 1, "--json")  # also where inputs are made up
    assert timed.returncode == 0 and json.loads(timed.stdout)["models"][0]["peak_memory_bytes"] > 0, timed.stderr
    found = support.detent("search", model, "-o", tmp_path / "found", "--calibration-data", clips, *given, "--json")
    assert found.returncode == 0, found.stderr
    assert any("--input 'sr=16000' --input 'state=0.5'" in point["command"] for point in json.loads(found.stdout)["points"])
    made_again = ["quantize", "--config", tmp_path / "run.yaml"]
    saved = [*support.PLAIN, "--no-bench", "--save-config", tmp_path / "run.yaml"]
    assert support.detent("quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", clips, *given, *saved).returncode == 0
    first = (tmp_path / "q.onnx").read_bytes()
    assert support.detent(*made_again).returncode == 0
    assert (tmp_path / "q.onnx").read_bytes() == first == (tmp_path / "sound.onnx").read_bytes()


def test_what_is_no_number_of_an_input_is_refused_before_anything_is_written(clips: Path, tmp_path: Path) -> None:
    model = with_rate_and_state(tmp_path / "detector.onnx")
    for given, says in {
        "sr": "not an input with its number",
        "rate=1": "has no input 'rate'",
        "sr=fast": "'fast' is no value",
    }.items():
        words = ["--calibration-data", clips, "--input", given, "--input", "state=0"]
        result = support.detent("quantize", model, "-o", tmp_path / "q.onnx", *words)
        assert (result.returncode, says in result.stderr) == (2, True), result.stderr
    few = support.detent("quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", clips, "--input", f"sr={RATE}")
    assert few.returncode == BAD_INPUT and "--input NAME=NUMBER" in few.stderr
    assert not (tmp_path / "q.onnx").exists()
