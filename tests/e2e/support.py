"""What the end-to-end tests share: running detent and ONNX Runtime, writing samples, comparing results."""

import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

ROOT = pathlib.Path(__file__).resolve().parents[2]
DETENT = pathlib.Path(os.environ.get("DETENT", ROOT / "build" / "detent"))
MODELS = pathlib.Path(os.environ.get("DETENT_MODELS", ROOT / "build" / "models"))
# Packages for language models, which `scripts/setup.sh runtimes` fetches.
LANGUAGE = MODELS.parent / "deps" / "language"
TASKS = ROOT / "bench" / "tasks_small.py"
TYPES = {
    "int8": QuantType.QInt8,
    "uint8": QuantType.QUInt8,
    "int16": QuantType.QInt16,
    "uint16": QuantType.QUInt16,
    "int4": QuantType.QInt4,
    "uint4": QuantType.QUInt4,
}

PLAIN = ["--preset", "plain"]

Sample = dict[str, np.ndarray]
#: Other versions of ONNX Runtime.
RUNTIMES = sorted(p for p in (MODELS.parent / "deps" / "runtimes").glob("[0-9]*"))
RUN = """
import sys
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level = 3
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
np.savez(sys.argv[3], *session.run(None, dict(np.load(sys.argv[2]))))
"""
Path = pathlib.Path


@dataclasses.dataclass(frozen=True)
class Config:
    """A format, for detent and for ONNX Runtime."""

    activation: str = "uint8"
    weight: str = "int8"
    per_channel: bool = True
    symmetric: bool = False
    reduce_range: bool = False

    def options(self) -> list[str]:
        """As options of detent's command line."""
        chosen = ["--activation-type", self.activation, "--weight-type", self.weight]
        chosen += ["--per-channel" if self.per_channel else "--per-tensor"]
        return chosen + ["--set", "activation-symmetric"] * self.symmetric + ["--set", "weight-range=reduced"] * self.reduce_range

    def __str__(self) -> str:
        parts = [self.activation, self.weight, "channel" if self.per_channel else "tensor"]
        return "-".join(parts + ["symmetric"] * self.symmetric + ["reduced"] * self.reduce_range)


def without_progress(stderr: str) -> str:
    """What was said beside the lines that runs of more than ten seconds write, as any may on a busy machine."""
    return re.sub(r"^.*  memory \d.*, peak \d.*\n", "", stderr, flags=re.MULTILINE)


class Ran(subprocess.CompletedProcess[str]):
    """Of the command: `notes` are the lines of notes on stderr, which `stderr` is without."""

    notes: str = ""


NOTE = re.compile(r"^detent: note: .*\n", re.MULTILINE)


def without_notes(stderr: str) -> str:
    """What was said beside progress and notes: errors."""
    return NOTE.sub("", without_progress(stderr))


def notes_apart(ran: subprocess.CompletedProcess[str]) -> Ran:
    result = Ran(ran.args, ran.returncode, ran.stdout, without_notes(ran.stderr))
    result.notes = "".join(NOTE.findall(without_progress(ran.stderr)))
    return result


SAYS_WHAT_COMES_OUT = {"format", "target", "config", "activations", "quant-format", "block-float", "bits", "scale-type"}
BESIDE_INT8 = {"weight-type": {"int8", "uint8"}, "activation-type": {"int8", "uint8"}, "float": {"32"}}


def may_be_int8(command: list[str]) -> bool:
    """Whether `--format int8` goes with all of it."""
    for word, value in itertools.pairwise([*command, ""]):
        option = value if word == "--set" else f"{word[2:]}={value}" if word.startswith("--") else ""
        name, _, given = option.partition("=")
        if name in SAYS_WHAT_COMES_OUT or given not in BESIDE_INT8.get(name, {given}):
            return False
    return True


def detent(*arguments: object, **options: object) -> Ran:
    """Runs the binary; options go to subprocess.run. What quantizes does so as quantize_static, if no preset is
    named, and times nothing, if not asked to."""
    command = [(options.get("env") or {}).get("DETENT", str(DETENT)), *map(str, arguments)]
    quantizes = command[1:2] in (["quantize"], ["plan"], ["calibrate"]) and "--merge" not in command
    if quantizes and not {"--preset", "--weights-only", "--family", "--node-formats"} & set(command):
        command += PLAIN
    if quantizes and "calibrate" not in command and "balanced" in command and "--optimize-for" not in command:
        command += ["--optimize-for", "size"]  # what the machine is fast at is of no concern, but in test_speed.py
        if may_be_int8(command):
            command += ["--format", "int8"]  # not weights alone
    if command[1:2] == ["quantize"] and "--bench" not in command:
        command.append("--no-bench")
    return notes_apart(subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options))


def python(env: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a script, also on another CPU (the fixture old_cpu); it must succeed."""
    command = [env.get("PYTHON", sys.executable), *map(str, arguments)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran


def quantize(model: Path, output: Path, data: Path, *options: object, **run_options: object) -> dict:
    """`detent quantize`, which must succeed without a word on stderr; what it prints as JSON."""
    result = detent("quantize", model, "-o", output, "--calibration-data", data, "--json", *options, **run_options)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def weights_only(model: Path, output: Path, *options: object, **run_options: object) -> dict:
    """`detent quantize --weights-only`, which must succeed without a word on stderr; what it prints as JSON."""
    result = detent("quantize", model, "-o", output, "--weights-only", "--json", *options, **run_options)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def run_in(runtime: Path, model: Path, results: Path, **inputs: np.ndarray) -> list[np.ndarray] | None:
    """What another version of ONNX Runtime makes of a model, in a process of its own; None where it does not run it."""
    np.savez(results.with_suffix(".inputs.npz"), **inputs)
    command = [sys.executable, "-c", RUN, model, results.with_suffix(".inputs.npz"), results]
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": str(runtime)})
    return list(np.load(results).values()) if done.returncode == 0 else None


def gain(layers: list[dict]) -> float:
    """What fine-tuning leaves of the layers' errors: the geometric mean of after / before (0.001 at the least)."""
    ratios = [layer["error_after"] / layer["error_before"] for layer in layers if layer["error_before"] > 0]
    return float(np.exp(np.mean(np.log(np.maximum(ratios, 1e-3)))))


def resumed_after_kill(point: str, model: Path, data: Path, folder: Path, *options: object) -> Path:
    """What `detent quantize` writes that was killed at a fail point and went on; its working directory must be empty then."""
    work = folder / "work"
    work.mkdir()
    command = ["quantize", model, "-o", folder / "q.onnx", "--calibration-data", data, "--work-dir", work, *options]
    killed = detent(*command, env={**os.environ, "DETENT_FAILPOINT": point})
    assert killed.returncode == -signal.SIGKILL
    resumed = detent(*command, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert not list(work.iterdir())
    return folder / "q.onnx"


def calibrate(model: Path, output: Path, data: Path, *options: object, **run_options: object) -> Path:
    """`detent calibrate`, which must succeed without a word on stderr; the statistics file."""
    result = detent("calibrate", model, "-o", output, "--calibration-data", data, *options, **run_options)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return output


def save_samples(folder: Path, samples: list[Sample]) -> Path:
    """One .npz for each sample."""
    folder.mkdir(parents=True)
    for i, sample in enumerate(samples):
        np.savez(folder / f"{i:03}.npz", **sample)
    return folder


def load_samples(folder: Path) -> list[Sample]:
    return [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_model(path: Path) -> ort.InferenceSession:
    """The written file passes ONNX's checker and loads in ONNX Runtime as a user would load it."""
    onnx.checker.check_model(path, full_check=True)
    return load(path)


def load(path: Path, **config: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    for key, value in config.items():
        options.add_session_config_entry(f"session.{key}", value)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def outputs(session: ort.InferenceSession, samples: list[Sample]) -> list[list[np.ndarray]]:
    return [session.run(None, sample) for sample in samples]


def sqnr(reference: list[list[np.ndarray]], found: list[list[np.ndarray]], output: int = 0) -> float:
    """Signal to quantization noise of one output over all samples, in dB."""
    signal = sum(float(np.square(r[output], dtype=np.float64).sum()) for r in reference)
    noise = sum(float(np.square(np.float64(r[output]) - f[output]).sum()) for r, f in zip(reference, found, strict=True))
    return 10 * float(np.log10(signal / max(noise, 1e-30)))


def peak_memory(folder: Path, *command: object, **run_options: object) -> int:
    """In bytes, as the kernel counts the command; `folder` gets a file with the figures."""
    figures = folder / "figures.json"
    measured = [sys.executable, Path(__file__).with_name("measured.py"), figures, *map(str, command)]
    subprocess.run(measured, check=True, capture_output=True, **run_options)
    return json.loads(figures.read_text())["peak_bytes"]


class Reader(CalibrationDataReader):
    """Hands samples to ONNX Runtime's quantizer."""

    def __init__(self, samples: list[Sample]) -> None:
        self.samples = iter(samples)

    def get_next(self) -> Sample | None:
        return next(self.samples, None)


def peer_quantize(model: Path, output: Path, samples: list[Sample], config: Config, **options: object) -> None:
    """ONNX Runtime's own quantizer, in the format that `config` asks of detent."""
    quantize_static(
        model,
        output,
        Reader(samples),
        quant_format=QuantFormat.QDQ,
        per_channel=config.per_channel,
        reduce_range=config.reduce_range,
        activation_type=TYPES[config.activation],
        weight_type=TYPES[config.weight],
        calibrate_method=CalibrationMethod.MinMax,
        extra_options={"ActivationSymmetric": config.symmetric, **options},
    )


def prepare_task(task: str, folder: Path) -> Path:
    """Model, calibration samples and test data of one of the demo's tasks."""
    folder.mkdir()
    subprocess.run([sys.executable, TASKS, "prepare", task, MODELS, folder], check=True)
    return folder
