"""Quantizes model.onnx of this folder with an installed wheel: in Python and by the command, which must agree. Run it with the
environment's interpreter, where nothing but the wheel and what it requires is installed."""

import importlib.metadata
import pathlib
import subprocess
import sys

import detent
import numpy as np
import onnxruntime

rng = np.random.default_rng(0)
samples = [{"image": rng.standard_normal((1, 3, 24, 24), dtype=np.float32)} for _ in range(8)]
pathlib.Path("samples").mkdir()
for number, sample in enumerate(samples):
    np.savez(f"samples/{number}.npz", **sample)

command = pathlib.Path(sys.executable).with_name("detent")
subprocess.run([command, "--version"], check=True)
options = ["--calibration-data", "samples", "--preset", "plain", "--no-bench", "--finetune", "gptq"]
subprocess.run([command, "quantize", "model.onnx", "-o", "command.onnx", *options], check=True)
pictures = ["--images", "photos", "--image-preset", "01", "--no-bench"]
subprocess.run([command, "quantize", "model.onnx", "-o", "pictures.onnx", *pictures], check=True)
config = {"preset": "plain", "bench": False, "finetune": "gptq"}
detent.quantize("model.onnx", "python.onnx", samples, config, progress=False)
assert pathlib.Path("python.onnx").read_bytes() == pathlib.Path("command.onnx").read_bytes()

sessions = [onnxruntime.InferenceSession(name, providers=["CPUExecutionProvider"]) for name in ("model.onnx", "python.onnx")]
before, after = (session.run(None, samples[0])[0] for session in sessions)
error = np.linalg.norm(after - before) / np.linalg.norm(before)
assert 0 < error < 0.1, error

engines = [file for file in importlib.metadata.files("detent") or [] if "libdetent.so" in file.name]
assert len(engines) == 1, engines
required = {line.split(">")[0] for line in importlib.metadata.requires("detent") or [] if "extra" not in line}
assert required == {"numpy", "onnxruntime"}, required
assert detent.__version__ == importlib.metadata.version("detent")
print(f"detent {detent.__version__}: python and command agree, error of the outputs {error:.4f}")
