"""A runtime that dies while it is asked for the types of a model that detent made: one line, and nothing is left. A stand-in for
ONNX Runtime ends by an assertion there (tests/tools/faulty_runtime.cpp)."""

import os
from pathlib import Path

import graphs
import onnx
import pytest
import support
from failures import BAD_INPUT, DEVICE, Place

DIED = "ONNX Runtime .* ended by a signal (.*) while it was asked for types"
# What stands in the model that is asked for types, and not in the user's.
TARGETS: dict[str, tuple[list[object], str]] = {
    "openvino": ([], "DequantizeLinear"),
    "qnn": ([], "DequantizeLinear"),
    "tensorrt": ([], "DequantizeLinear"),
    "amd-npu:xint8": ([], "DequantizeLinear"),
    "amd-npu:bfp16": (["--shape", "x:1x3x16x16"], "Identity"),
    "amd-npu:bf16": (["--preset", "none"], "Cast"),
    "coreml": (["--preset", "none"], "Cast"),
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    library = os.environ.get("FAULTY_RUNTIME", str(support.ROOT / "build" / "tests" / "libfaulty_runtime.so"))
    if not Path(library).is_file():
        pytest.skip("there is no stand-in for the runtime")
    place = Place(tmp_path)
    real = os.environ.get("DETENT_ONNXRUNTIME", str(support.ROOT / "build" / "libonnxruntime.so"))
    place.environment |= {"DETENT_ONNXRUNTIME": library, "REAL_ONNXRUNTIME": real}
    onnx.save(graphs.small_cnn(batch=1), place.inputs / "m.onnx")
    support.save_samples(place.inputs / "data", graphs.cnn_samples(4))
    return place


@pytest.mark.parametrize("target", TARGETS)
def test_quantize(place: Place, target: str) -> None:
    options, place.environment["FAULTY_TEXT"] = TARGETS[target]
    model, data = place.inputs / "m.onnx", place.inputs / "data"
    said = place.refused(DEVICE, DIED, model, data, "--target", target, *options, "--no-bench")
    assert "quantized model" in said


def test_check(place: Place) -> None:
    """Here the model is the user's."""
    place.environment["FAULTY_TEXT"] = "MaxPool"
    place.refuses(BAD_INPUT, "m.onnx.*" + DIED, "check", place.inputs / "m.onnx", "--target", "openvino")


# Each command that asks for types of the user's model, and each kind of result.
OF_USERS: dict[str, list[object]] = {
    "inspect": ["inspect", "{model}"],
    "plan": ["plan", "{model}", "--calibration-data", "{data}"],
    "calibrate": ["calibrate", "{model}", "-o", "{output}", "--calibration-data", "{data}"],
    "check": ["check", "{model}", "--target", "tensorrt"],
    "compare": ["compare", "{model}", "{model}", "--calibration-data", "{data}"],
    "search": ["search", "{model}", "-o", "{output}", "--calibration-data", "{data}"],
    **{
        name: ["quantize", "{model}", "-o", "{output}", "--calibration-data", "{data}", "--no-bench", *options]
        for name, options in {
            "plain": ["--preset", "plain"],
            "balanced": [],
            "dynamic": ["--activations", "dynamic"],
            "mixed": ["--node-formats", "^.*=int8"],
            "float16": ["--float", "16"],
            "weights": ["--weights-only", "--op-types", "Gemm"],
        }.items()
    },
}


@pytest.mark.parametrize("command", OF_USERS)
def test_a_users_model(place: Place, command: str) -> None:
    """Whatever asks for its types first: a process of its own dies, and nothing of the run stays."""
    place.environment["FAULTY_TEXT"] = "MaxPool"
    paths = {"model": place.inputs / "m.onnx", "data": place.inputs / "data", "output": place.output}
    words = [word.format(**paths) if isinstance(word, str) and "{" in word else word for word in OF_USERS[command]]
    place.refuses(BAD_INPUT, "m.onnx.*" + DIED, *words)


def test_a_stand_in_without_fault_passes(place: Place) -> None:
    model, data = place.inputs / "m.onnx", place.inputs / "data"
    given = ["--calibration-data", data, "--target", "openvino", "--no-bench"]
    done = support.detent("quantize", model, "-o", place.output, *given, env=place.environment)
    assert done.returncode == 0, done.stderr
