#!/usr/bin/env python3
"""Of how many nodes `detent check --target openvino` says rightly whether they run on integers, in small networks of usual blocks.

    check_blocks.py [--count N] [--first SEED] [--detent PATH]

For a Python that has openvino, onnx and numpy. blocks.py makes the networks: about half have static shapes, the others a batch of
any size. Each is quantized twice with the preset plain: for the target, and with activations of int8. Nodes of which `check` is not
right are listed, with the seed of their network."""

import argparse
import collections
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import blocks
import onnx
import openvino
from in_openvino import agreement

WAYS = {"--target openvino": ["--target", "openvino"], "int8 activations": ["--activation-type", "int8"]}
SETTINGS = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stderr}")
    return done.stdout


def judged(folder: Path, detent: str, options: list[str]) -> dict:
    out = folder / "quantized.onnx"
    given = ["--calibration-data", folder / "calibration", "--preset", "plain", "--no-bench", "--threads", 1]
    run(detent, "quantize", folder / "model.onnx", "-o", out, *given, *options)
    checked = json.loads(run(detent, "check", out, "--target", "openvino", "--json"))
    return agreement(str(out), openvino.Core().compile_model(str(out), "CPU", SETTINGS), checked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--detent", default="build/detent")
    a = parser.parse_args()
    same, told = collections.Counter(), collections.Counter()
    for seed in range(a.first, a.first + a.count):
        with tempfile.TemporaryDirectory(prefix="detent-blocks-") as name:
            folder = Path(name)
            blocks.save(seed, folder)
            batch = onnx.load(folder / "model.onnx").graph.input[0].type.tensor_type.shape.dim[0]
            shapes = "any batch" if batch.dim_param else "static shapes"
            for way, options in WAYS.items():
                found = judged(folder, a.detent, options)
                same[way, shapes] += found["same"]
                told[way, shapes] += found["told"]
                for line in found["wrong"]:
                    print(f"{seed}, {way}, {shapes}: {line}", flush=True)
    for key, count in told.items():
        print(f"{', '.join(key)}: right of {same[key]} of {count} nodes, {100 * same[key] / count:.2f} %")


if __name__ == "__main__":
    main()
