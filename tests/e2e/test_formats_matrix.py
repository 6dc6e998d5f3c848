"""Every format by every kind of model and every way to run: the same bytes, within the memory that was given."""

import functools
import json
import sys

import bodies
import graphs
import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT, USAGE
from support import Path, Sample

WEIGHTS = ("--weights-only",)
FORMATS: dict[str, tuple[str, ...]] = {
    "plain": ("--preset", "plain"),
    "balanced": ("--preset", "balanced"),
    "int16": ("--preset", "plain", "--activation-type", "int16"),
    "qoperator": ("--preset", "plain", "--quant-format", "qoperator"),
    "float8": ("--preset", "plain", "--weight-type", "float8e4m3fn", "--activation-type", "float8e4m3fn"),
    "dynamic": ("--activations", "dynamic"),
    "float16": ("--preset", "none", "--float", "16"),
    "bfloat16": ("--preset", "none", "--float", "bf16"),
    "plain in float16": ("--preset", "plain", "--float", "16"),
    "balanced in float16": ("--preset", "balanced", "--float", "16"),
    "4 bits": WEIGHTS,
    "4 bits, nearest": (*WEIGHTS, "--set", "weights-method=nearest"),
    "8 bits, DequantizeLinear": (*WEIGHTS, "--bits", "8", "--weights-form", "qdq"),
    "4 bits in float16": (*WEIGHTS, "--float", "16"),
    "MXFP4": (*WEIGHTS, "--weight-type", "float4e2m1", "--set", "scale-type=float8e8m0"),
}
BUDGET = 300  # MiB: detent and ONNX Runtime take about 40 of them


def ways(kind: str) -> list[str]:
    """That change memory and the order of work, as far as the format has them."""
    if kind == "dynamic":
        return ["", "--threads 1", f"--threads 1 --memory-budget {BUDGET}MiB"]
    if FORMATS[kind][0] == "--weights-only":
        return ["", "--set memory-level=2", f"--threads 1 --memory-budget {BUDGET}MiB"]
    return ["", "--set segments=3 --set memory-level=2 --workers 2", f"--threads 1 --memory-budget {BUDGET}MiB"]


def wide(samples: list[Sample]) -> list[Sample]:
    return [{name: array.astype(np.float16) if array.dtype == np.float32 else array for name, array in s.items()} for s in samples]


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (1, 3, 48, 192)).astype(np.float32)


@functools.cache
def subjects() -> dict[str, tuple[onnx.ModelProto, list[Sample]]]:
    return {
        "convolutions": (graphs.small_cnn(), graphs.cnn_samples()),
        "transformer": (graphs.transformer(), graphs.transformer_samples(4)),
        "branches": (bodies.with_if(nested=True), bodies.samples("nested", 4)),
        "16 bits": (graphs.small_cnn(fp16=True), wide(graphs.cnn_samples())),
        "trained": (onnx.load(support.MODELS / "ppocr_cls.onnx"), [{"x": picture(i)} for i in range(3)]),
    }


#: Formats that a model has nothing for, and what the line says: weights are too small for blocks, or scales are float32.
REFUSED = {
    ("qoperator", "16 bits"): "--float 32",
    ("dynamic", "16 bits"): "--float 32",
    ("8 bits, DequantizeLinear", "convolutions"): "stored in blocks",
    ("8 bits, DequantizeLinear", "branches"): "stored in blocks",
    ("8 bits, DequantizeLinear", "16 bits"): "stored in blocks",
}


def run(model: Path, output: Path, data: Path, *options: object) -> tuple[int, str, dict]:
    result = support.detent("quantize", model, "-o", output, "--calibration-data", data, "--json", *options)
    return result.returncode, result.stderr, json.loads(result.stdout) if result.returncode == 0 else {}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("subject", ["convolutions", "transformer", "branches", "16 bits", "trained"])
@pytest.mark.parametrize("kind", FORMATS)
def test_same_bytes_within_the_memory_given(kind: str, subject: str, tmp_path: Path) -> None:
    model, samples = subjects()[subject]
    onnx.save(model, tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", samples)
    written = set()
    for n, way in enumerate(ways(kind)):
        code, stderr, said = run(tmp_path / "m.onnx", tmp_path / f"{n}.onnx", data, *FORMATS[kind], *way.split())
        if says := REFUSED.get((kind, subject)):
            assert code in (USAGE, BAD_INPUT), stderr
            assert says in stderr
            return
        assert (code, stderr) == (0, ""), stderr
        written.add((tmp_path / f"{n}.onnx").read_bytes())
        if "--memory-budget" in way:
            assert said["peak_memory_bytes"] <= BUDGET << 20
    assert len(written) == 1


PLAIN_INFERENCE = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
for sample in sys.argv[2:]:
    session.run(None, dict(numpy.load(sample)))
"""


@functools.cache
def wide_activations(folder: Path) -> tuple[Path, Path, int]:
    """The model, its samples, and the peak of plain inference with the runtime's default settings."""
    onnx.save(graphs.skips(384), folder / "m.onnx")
    data = support.save_samples(folder / "data", graphs.skip_samples(384))
    command = [sys.executable, "-c", PLAIN_INFERENCE, folder / "m.onnx", *sorted(data.iterdir())]
    return folder / "m.onnx", data, support.peak_memory(folder, *command)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["balanced", "dynamic", "float16", "plain in float16", "4 bits"])
def test_no_more_memory_than_plain_inference(kind: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """Also where the results of both models are compared at the end; measured latencies are not part of it."""
    model, data, plain = wide_activations(tmp_path_factory.getbasetemp())
    named = ["--op-types", "Conv"] if kind in ("dynamic", "4 bits") else []
    options = ["--calibration-data", data, "--threads", 1, "--no-bench", *FORMATS[kind], *named]
    peak = support.peak_memory(tmp_path, support.DETENT, "quantize", model, "-o", tmp_path / "q.onnx", *options)
    assert peak <= plain + (16 << 20), f"{peak >> 20} MiB, and plain inference takes {plain >> 20}"
