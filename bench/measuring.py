#!/usr/bin/env python3
"""What a default run takes beside plain inference of its samples: CPU time, one thread.

  measuring.py [MODELS ...] [--data FOLDER] [--samples N] [--rounds N] [--detent PATH]
  MODELS  trained models, or folders of them (default: build/models), of which those are taken that are there of
          ppocr_cls, ppocr_det, ppocr_rec, opennsfw, nudenet_320n, minilm
  FOLDER  samples of a model that is none of these, as .npz files

Samples are seeded random numbers of the models' shapes, unless they are given. The tools take turns, and the least time of each
counts; ratios are to plain inference. quantize_static and `--preset plain` calibrate by minmax."""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime

HERE = Path(__file__).resolve().parent
SHAPES = {
    "ppocr_cls": (3, 48, 192),
    "ppocr_det": (3, 480, 480),
    "ppocr_rec": (3, 48, 320),
    "opennsfw": (224, 224, 3),
    "nudenet_320n": (3, 320, 320),
    "minilm": (32,),
}


def session_of(model: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options)


def samples_of(model: Path, count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    shape = (1, *SHAPES[model.stem])
    if model.stem == "minilm":
        ones, zeros = np.ones(shape, np.int64), np.zeros(shape, np.int64)
        ids = [rng.integers(1000, 20000, shape) for _ in range(count)]
        return [{"input_ids": i, "attention_mask": ones, "token_type_ids": zeros} for i in ids]
    name = session_of(model).get_inputs()[0].name
    return [{name: (rng.normal(size=shape).cumsum(-1) / 8).astype(np.float32)} for _ in range(count)]


def inference_seconds(model: Path, samples: list[dict[str, np.ndarray]]) -> float:
    session = session_of(model)
    session.run(None, samples[0])
    start = time.process_time()
    for sample in samples:
        session.run(None, sample)
    return time.process_time() - start


def child_seconds(command: list[object]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        print(f"  {command[0]} failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return float("nan")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def given_samples(folder: Path, count: int) -> list[dict[str, np.ndarray]]:
    return [dict(np.load(file)) for file in sorted(folder.glob("*.npz"))[:count]]


def models_of(given: list[Path], has_data: bool) -> list[Path]:
    """Raises SystemExit for what cannot be measured: an empty table would not say so."""
    models = []
    for path in given:
        if path.is_dir():
            models += [path / f"{name}.onnx" for name in SHAPES if (path / f"{name}.onnx").is_file()]
        elif not path.is_file():
            sys.exit(f"there is no model '{path}'")
        elif path.stem not in SHAPES and not has_data:
            sys.exit(f"samples of '{path}' are not known: give --data, or one of {', '.join(SHAPES)}")
        else:
            models.append(path)
    return models or sys.exit(f"none of {', '.join(SHAPES)} is in {', '.join(map(str, given))}")


def row(model: Path, a: argparse.Namespace, folder: Path) -> str:
    data, out = folder / "data", folder / "out.onnx"
    data.mkdir()
    samples = given_samples(a.data, a.samples) if a.data else samples_of(model, a.samples)
    for i, sample in enumerate(samples):
        np.savez(data / f"{i:03}.npz", **sample)
    detent = [a.detent, "quantize", model, "-o", out, "--calibration-data", data, "--threads", 1]
    tools = {
        "plain inference": lambda: inference_seconds(model, samples),
        "default": lambda: child_seconds(detent),
        "without gptq": lambda: child_seconds([*detent, "--finetune", "nearest"]),
        "plain": lambda: child_seconds([*detent, "--preset", "plain"]),
        "quantize_static": lambda: child_seconds([sys.executable, HERE / "ort_quantize.py", model, out, data, "minmax", 1]),
    }
    least = {name: min(times) for name, times in zip(tools, zip(*([tool() for tool in tools.values()] for _ in range(a.rounds))))}
    inference = least.pop("plain inference")
    return f"| {model.stem} | {inference:.2f} | " + " | ".join(f"{seconds / inference:.1f}" for seconds in least.values()) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, default=[HERE.parent / "build" / "models"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--detent", type=Path, default=HERE.parent / "build" / "detent")
    a = parser.parse_args()
    os.environ.setdefault("DETENT_ONNXRUNTIME", str(HERE.parent / "build" / "libonnxruntime.so"))
    models = models_of(a.models, a.data is not None)
    print("| model | inference, s | default | without gptq | plain | quantize_static |\n|---|---|---|---|---|---|")
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            print(row(model, a, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
