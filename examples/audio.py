#!/usr/bin/env python3
"""Quantizes a speech detector (Silero VAD) with a recording of two people talking.

    pip install .
    python scripts/fetch_models.py silero speech
    python examples/audio.py

The model processes 32 ms at a time and keeps a state, so each sample needs the float model's state after the one before:
a generator runs the model along the way, and no sample is kept. A third of the recording is used for calibration; on the
rest, the decisions of both models are compared with the recording's annotation."""

import argparse
import pathlib
import wave

import detent
import numpy as np
import onnxruntime as ort

MODELS = pathlib.Path(__file__).resolve().parents[1] / "build" / "models"
RATE, STEP, CONTEXT = 16000, 512, 64


def recording() -> np.ndarray:
    with wave.open(str(MODELS / "speech" / "sample.wav")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def annotated(steps: int) -> np.ndarray:
    """Whether someone speaks in the middle of each step."""
    times = (np.arange(steps) + 0.5) * STEP / RATE
    talking = np.zeros(steps, bool)
    for line in (MODELS / "speech" / "sample.rttm").read_text().splitlines():
        start, length = map(float, line.split()[3:5])
        talking |= (times >= start) & (times < start + length)
    return talking


def run(session: ort.InferenceSession, audio: np.ndarray):
    """Yields the inputs of each step and the probability of speech."""
    state = np.zeros((2, 1, 128), np.float32)
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), audio])
    for start in range(0, len(audio) - STEP + 1, STEP):
        inputs = {"input": padded[None, start : start + CONTEXT + STEP], "state": state}
        probability, state = session.run(None, inputs)
        yield inputs, float(probability[0, 0])


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    model, output = MODELS / "silero_vad.onnx", MODELS / "silero_vad.int8.onnx"
    audio = recording()
    third = len(audio) // 3 // STEP * STEP

    def samples():
        for inputs, _ in run(ort.InferenceSession(model), audio[third : 2 * third]):
            yield inputs

    # Handed over as a function, the generator can begin anew: GPTQ reads the samples twice.
    config = detent.Config(op_types=["Conv", "MatMul"], weight_type="uint8", method="percentile", finetune="gptq")
    print(detent.quantize(model, output, samples, config))

    steps = len(audio) // STEP
    asked = np.r_[: third // STEP, 2 * third // STEP : steps]
    talking = annotated(steps)[asked]
    found = {path.name: np.array([p for _, p in run(ort.InferenceSession(path), audio)])[asked] for path in (model, output)}
    for name, probabilities in found.items():
        print(f"{name:22} right in {np.mean((probabilities > 0.5) == talking):.1%} of {len(asked)} steps")
    difference = np.abs(found[model.name] - found[output.name])
    print(f"probabilities differ by {difference.mean():.4f} on average, {difference.max():.4f} at most")


if __name__ == "__main__":
    main()
