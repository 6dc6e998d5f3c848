#!/usr/bin/env python3
"""What `detent quantize --family` costs beside its members one by one: a table in Markdown, processor seconds (wall seconds).

  family.py [--rounds N] [--weights FOLDER] [--options …]

Models: the trained decoder of scripts/build_decoder.py, and one of its shape with random weights (75 million), on random tokens:
64 samples of 256, and 16 of 128. All runs of a round follow one another; the table has medians. --options are added to every run
that takes them, as in --options=--no-bench."""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import build_decoder

BINARY = build_decoder.ROOT / "build" / "detent"
LARGE = build_decoder.Shape(layers=4, hidden=1024, heads=16, kv_heads=4, inner=2816, vocabulary=16000, context=1024)
WAYS = {
    "fp16": ["--float", "16"],
    "q8": ["--activations", "dynamic"],
    "q4": ["--weights-only"],
    "q4f16": ["--weights-only", "--float", "16"],
    "family": ["--family", "fp16,q8,q4,q4f16"],
}


def random_decoder(folder: pathlib.Path, shape: build_decoder.Shape) -> pathlib.Path:
    random = np.random.default_rng(0)

    def weight(name: str, *dims: int) -> np.ndarray:
        if "norm" in name:
            return np.ones(dims, np.float32)
        return random.standard_normal(dims, np.float32) * np.float32(1 if "embed" in name else dims[0] ** -0.5)

    folder.mkdir()
    where = {"save_as_external_data": True, "location": "model.onnx.data", "size_threshold": 256}
    onnx.save(build_decoder.decoder(shape, weight), folder / "model.onnx", **where)
    return folder


def seconds(*words: object) -> tuple[float, float]:
    """Of a run: processor time and wall time."""
    start, before = time.monotonic(), os.times()
    subprocess.run([str(BINARY), "quantize", *map(str, words), "-q"], check=True)
    after = os.times()
    cpu = sum(getattr(after, part) - getattr(before, part) for part in ("children_user", "children_system"))
    return cpu, time.monotonic() - start


def row(name: str, model: pathlib.Path, rounds: int, options: list[str]) -> str:
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, words in WAYS.items():
            with tempfile.TemporaryDirectory() as out:
                fitting = [word for word in options if way != "fp16" or word != "--no-bench"]
                taken[way].append(seconds(model, "-o", f"{out}/out", *words, *fitting))
    medians = {way: [statistics.median(values) for values in zip(*all_, strict=True)] for way, all_ in taken.items()}
    slowest = max(cpu for way, (cpu, _) in medians.items() if way != "family")
    cells = [f"{cpu:.2f} ({wall:.2f})" for cpu, wall in medians.values()]
    return f"| {name} | {' | '.join(cells)} | {medians['family'][0] / slowest:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weights", type=pathlib.Path, default=build_decoder.TRAINED)
    parser.add_argument("--options", default="")
    given = parser.parse_args()
    options = given.options.split()
    print(f"| | {' | '.join(WAYS)} | family, of the slowest |\n|---|{'---|' * (len(WAYS) + 1)}")
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        shape, _ = build_decoder.trained(given.weights)
        models = {
            "trained": (build_decoder.build(folder / "trained", given.weights), shape, (64, 256)),
            "random": (random_decoder(folder / "random", LARGE), LARGE, (16, 128)),
        }
        for name, (model, made, size) in models.items():
            np.save(folder / f"{name}.npy", np.random.default_rng(1).integers(0, made.vocabulary, size))
            data = ["--calibration-data", str(folder / f"{name}.npy"), "--batch-size", "1"]
            print(row(f"{name}, samples", model, given.rounds, [*data, *options]), flush=True)
            print(row(f"{name}, no samples", model, given.rounds, options), flush=True)


if __name__ == "__main__":
    main()
