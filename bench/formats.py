#!/usr/bin/env python3
"""One sentence encoder, MiniLM, in all formats: the score of scores.py's column minilm, SQNR of the output, and the file's size.

  formats.py [--models build/models] [--detent build/detent]

Samples are the 32 of scores.py. Models run as there: Q/DQ pairs compute in float, so that the CPU does not matter."""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import scores

FORMATS = {
    "`fp16`": ["--format", "fp16"],
    "`int8`": ["--format", "int8"],
    "`int8`, `--optimize-for size`": ["--format", "int8", "--optimize-for", "size"],
    "`int8`, `--preset plain`": ["--format", "int8", "--preset", "plain"],
    "`int8-dynamic`": ["--format", "int8-dynamic"],
    "`a16w8`": ["--format", "a16w8"],
    "`q8`": ["--format", "q8"],
    "`q4`": ["--format", "q4"],
    "`q4f16`": ["--format", "q4f16"],
    "`fp8`": ["--format", "fp8"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("build/models"), help="where scripts/fetch_models.py put them")
    parser.add_argument("--detent", default="build/detent")
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    a.detent, a.models, a.memory_limit_mb, a.time_limit = os.path.abspath(a.detent), a.models.resolve(), None, 3600
    print("| format | score, % | SQNR, dB | file, MiB |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="detent-formats-") as name:
        job = scores.Job(scores.COLUMNS["minilm"], a, scores.environment(None), Path(name))
        megabytes = lambda path: f"{path.stat().st_size / 2**20:.1f}"
        score = job.score("model.onnx", "float.npy")
        print(f"| float32 | {100 * score:.1f} | | {megabytes(job.folder / 'model.onnx')} |", flush=True)
        given = ["--calibration-data", job.folder / "calibration", "--no-bench", "--quiet", "--threads", a.threads]
        for label, options in FORMATS.items():
            job.out.unlink(missing_ok=True)
            job.run([job.detent, "quantize", job.folder / "model.onnx", "-o", job.out, *given, *options])
            score = job.score(job.out.name)
            floats, made = np.load(job.folder / "float.npy"), np.load(job.folder / "results.npy")
            sqnr = 10 * np.log10(np.sum(floats**2, dtype=float) / np.sum((made - floats) ** 2, dtype=float))
            print(f"| {label} | {100 * score:.1f} | {sqnr:.1f} | {megabytes(job.out)} |", flush=True)


if __name__ == "__main__":
    main()
