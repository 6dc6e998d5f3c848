"""Default runs on a CPU that adds products of 8 bits in saturating 16 bits: AVX2, without VNNI."""

import json
import subprocess

import graphs
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto
from support import Path

FORMS = {
    "static": ["--optimize-for", "size", "--finetune", "nearest"],
    "dynamic": ["--activations", "dynamic"],
}
# Measured, but not acted on: what saturates would stay in float.
FULL = {
    "static": ["--set", "weight-range=full", "--set", "sensitivity=report"],
    "dynamic": ["--set", "weight-range=full"],
}
RUN = """
import sys, glob, numpy as np, onnxruntime as ort
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
np.save(sys.argv[3], [session.run(None, dict(np.load(path)))[0] for path in sorted(glob.glob(sys.argv[2] + "/*.npz"))])
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Products whose neighbouring weights are large and of one sign."""
    b = graphs.Builder(81)
    value = "x"
    for n in range(3):
        weight = b.rng.uniform(0.6, 1, (64, 64)) * b.rng.choice([1, 1, -1], (1, 64)) / 48
        value = b.add("Relu", b.add("MatMul", value, b.constant(f"w{n}", weight), name=f"product{n}"))
    onnx.save(b.model({"x": (TensorProto.FLOAT, [8, 64])}, [value]), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(82)
    samples = [{"x": rng.uniform(0, 1, (8, 64)).astype(np.float32) * rng.uniform(0.8, 1)} for _ in range(8)]
    return support.save_samples(tmp_path / "data", samples)


def accuracy(model: Path, quantized: Path, data: Path, env: dict[str, str], *options: str) -> tuple[float, float]:
    """Of a default run on that CPU: what it tells, and what the written file has there."""
    command = [
        env.get("DETENT", support.DETENT),
        "quantize",
        model,
        "-o",
        quantized,
        "--calibration-data",
        data,
        "--json",
        "--no-bench",
    ]
    ran = subprocess.run([*command, *options], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    results = []
    for path in (model, quantized):
        support.python(env, "-c", RUN, path, data, quantized.with_suffix(".npy"))
        results.append([[y] for y in np.load(quantized.with_suffix(".npy"))])
    return json.loads(ran.stdout)["accuracy"]["sqnr_db"], support.sqnr(*results)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_saturates_by_default(form: str, model: Path, data: Path, tmp_path: Path, old_cpu: dict[str, str]) -> None:
    told, found = accuracy(model, tmp_path / "q.onnx", data, old_cpu, *FORMS[form])
    assert found > 30
    assert told == pytest.approx(found, abs=0.01)  # all samples are judged, since there are eight


@pytest.mark.parametrize("form", FORMS)
def test_the_accuracy_that_is_told_is_that_of_this_cpu(
    form: str, model: Path, data: Path, tmp_path: Path, old_cpu: dict[str, str]
) -> None:
    told, found = accuracy(model, tmp_path / "q.onnx", data, old_cpu, *FORMS[form], *FULL[form])
    assert found < 20, "else the other test proves nothing"
    assert told == pytest.approx(found, abs=0.01)
