"""Silero's detector of speech on a recording of two people: the score is the share of steps of 32 ms in which it agrees with the
annotation that comes with the recording. The command line is tasks_common.py's.

The model hands its state on. Here every step gets the state that the float model had there, so that all models are asked the same.
The first third of the recording calibrates, the rest tests."""

import pathlib
import wave

import numpy as np
import onnx
import onnxruntime
import tasks_common

CALIBRATION = 32
RATE, STEP, CONTEXT = 16000, 512, 64


def with_batched_state(source: pathlib.Path, target: pathlib.Path) -> None:
    """The state gets a first axis of one sample, as all other inputs of tasks have; the verdict becomes the last output."""
    model = onnx.load(source)
    state = next(value for value in model.graph.input if value.name == "state")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, -1, 128]), "state_shape"))
    model.graph.node.insert(0, onnx.helper.make_node("Reshape", ["states", "state_shape"], ["state"], name="state_reshape"))
    state.CopyFrom(onnx.helper.make_tensor_value_info("states", onnx.TensorProto.FLOAT, [1, 2, 1, 128]))
    model.graph.output.sort(key=lambda value: value.name == "output")
    onnx.save(model, target)


def recording(models: pathlib.Path) -> np.ndarray:
    with wave.open(str(models / "speech" / "sample.wav")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def annotated(models: pathlib.Path, steps: int) -> np.ndarray:
    """Whether someone speaks in the middle of each step."""
    times = (np.arange(steps) + 0.5) * STEP / RATE
    talking = np.zeros(steps, bool)
    for line in (models / "speech" / "sample.rttm").read_text().splitlines():
        start, length = map(float, line.split()[3:5])
        talking |= (times >= start) & (times < start + length)
    return talking


def steps_of(model: pathlib.Path, audio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Input and state of each step."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    padded, state = np.concatenate([np.zeros(CONTEXT, np.float32), audio]), np.zeros((1, 2, 1, 128), np.float32)
    inputs, states = [], []
    for start in range(0, len(audio) - STEP + 1, STEP):
        inputs.append(padded[start : start + CONTEXT + STEP])
        states.append(state[0])
        state = session.run(["stateN"], {"input": inputs[-1][None], "states": state})[0].reshape(1, 2, 1, 128)
    return np.stack(inputs), np.stack(states)


def prepare(models: pathlib.Path, out: pathlib.Path) -> None:
    with_batched_state(models / "silero_vad.onnx", out / "model.onnx")
    inputs, states = steps_of(out / "model.onnx", recording(models))
    third = len(inputs) // 3
    chosen = np.linspace(0, third - 1, CALIBRATION).astype(int)
    tasks_common.save_calibration(out, ({"input": inputs[i][None], "states": states[i][None]} for i in chosen))
    np.savez(out / "test.npz", input=inputs[third:], states=states[third:])
    np.save(out / "labels.npy", annotated(models, len(inputs))[third:])


def accuracy(folder: pathlib.Path, _float: np.ndarray, outputs: np.ndarray) -> float:
    return float(((outputs[:, 0] > 0.5) == np.load(folder / "labels.npy")).mean())


if __name__ == "__main__":
    tasks_common.main(prepare, accuracy)
