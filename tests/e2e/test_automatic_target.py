"""`--target auto`: the best execution provider of the runtime that is loaded decides, and the result is that of its target."""

import json
import os

import onnx
import pytest
from graphs import cnn_samples, small_cnn
from support import Path, detent, quantize, save_samples

TARGETS = {
    "QNNExecutionProvider": "qnn",
    "OpenVINOExecutionProvider": "openvino",
    "TensorrtExecutionProvider": "tensorrt",
    "VitisAIExecutionProvider": "amd-npu:xint8",
    "CoreMLExecutionProvider": "coreml",
    "XnnpackExecutionProvider": "xnnpack",
    "CUDAExecutionProvider": "ort-cpu",
}


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cnn")
    model = small_cnn(batch=1)
    onnx.save(model, folder / "m.onnx")
    save_samples(folder / "data", cnn_samples())
    return folder


def with_provider(name: str) -> dict[str, str]:
    return {
        **os.environ,
        "REAL_ONNXRUNTIME": os.environ["DETENT_ONNXRUNTIME"],
        "DETENT_ONNXRUNTIME": os.environ["OTHER_PROVIDERS"],
        "HAS_PROVIDER": name,
    }


@pytest.mark.parametrize(("provider", "target"), TARGETS.items())
def test_the_provider_decides(cnn: Path, tmp_path: Path, provider: str, target: str) -> None:
    env = with_provider(provider)
    preset = ["--preset", "none" if target == "coreml" else "plain"]
    report = quantize(cnn / "m.onnx", tmp_path / "auto.onnx", cnn / "data", "--target", "auto", *preset, env=env)
    quantize(cnn / "m.onnx", tmp_path / "named.onnx", cnn / "data", "--target", target, *preset)
    assert (tmp_path / "auto.onnx").read_bytes() == (tmp_path / "named.onnx").read_bytes()
    notes = [note for note in report["notes"] if note.startswith(f"--target auto: {target}, since ONNX Runtime ")]
    assert len(notes) == 1 and provider in notes[0], report["notes"]
    told = json.loads(detent("check", tmp_path / "auto.onnx", "--target", "auto", "--json", env=env).stdout)
    assert told["target"] == target and provider in told["target_reason"]


def test_plan_yaml_and_what_contradicts(cnn: Path, tmp_path: Path) -> None:
    env = with_provider("OpenVINOExecutionProvider")
    (tmp_path / "options.yaml").write_text("target: auto\n")
    planned = detent("plan", cnn / "m.onnx", "--config", tmp_path / "options.yaml", env=env)
    assert planned.returncode == 0 and "note: --target auto: openvino" in planned.notes
    given = ["--calibration-data", cnn / "data", "--target", "auto", "--weight-type", "uint8"]
    refused = detent("quantize", cnn / "m.onnx", "-o", tmp_path / "q.onnx", *given, env=env)
    assert refused.returncode == 2 and "--weight-type uint8 contradicts --target openvino" in refused.stderr


def test_statistics_and_resume_know_the_name_alone(cnn: Path, tmp_path: Path) -> None:
    env = with_provider("OpenVINOExecutionProvider")
    given = ["-o", tmp_path / "m.stats", "--calibration-data", cnn / "data", "--target", "auto"]
    assert detent("calibrate", cnn / "m.onnx", *given, env=env).returncode == 0
    given = ["-o", tmp_path / "q.onnx", "--statistics", tmp_path / "m.stats", "--target", "openvino"]
    done = detent("quantize", cnn / "m.onnx", *given)
    assert done.returncode == 0, done.stderr
    page = tmp_path / "report.html"
    quantize(cnn / "m.onnx", tmp_path / "r.onnx", cnn / "data", "--target", "auto", "--report", page, env=env)
    assert "--target auto: openvino, since ONNX Runtime" in page.read_text()
