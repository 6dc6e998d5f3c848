#!/usr/bin/env python3
"""How far a model's layers are from exact integers in the runtime of a target, worst first.

    layers.py COLUMN TARGET [--samples N] [--preset NAME]

COLUMN is one of scores.py, TARGET is openvino, qnn or qnn:a16. For a Python that has detent, onnx, onnxruntime, numpy and what the
column needs, beside the runtime's package (openvino, onnxruntime-qnn). The samples are the first of those for calibration."""

import argparse
import os
import tempfile
from pathlib import Path

import detent
from measure import environment
from scores import COLUMNS
from targets import TargetJob

SHOWN = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("column", choices=COLUMNS)
    parser.add_argument("target")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--preset", default="plain")
    parser.add_argument("--models", type=Path, default=Path("build/models"))
    parser.add_argument("--detent", default="build/detent")
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    a.detent, a.models = os.path.abspath(a.detent), a.models.resolve()
    a.memory_limit_mb, a.time_limit = None, 3600
    with tempfile.TemporaryDirectory(prefix="detent-layers-") as folder:
        job = TargetJob(COLUMNS[a.column], a, environment(None), Path(folder))
        job.static = a.target.startswith("qnn")
        job.quantize_here(a.preset, "--target", a.target)
        data = job.folder / "calibration"
        result = detent.verify(job.folder / "model.onnx", job.out, data, target=a.target, max_samples=a.samples, bench=False)
    layers = sorted(result.layers, key=lambda layer: -layer.max_steps)
    for layer in layers[:SHOWN]:
        print(f"{layer.max_steps:8.4g} steps, {100 * layer.share_over_one:.2g} % over one: {layer.made_by}")
    within = sum(layer.max_steps <= 1 for layer in layers)
    print(f"{within} of {len(layers)} layers are within one step in {result.consumer}")


if __name__ == "__main__":
    main()
