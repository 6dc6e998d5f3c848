#!/usr/bin/env python3
"""What rotating the residual stream does to a language model whose weights are rounded: a table in Markdown.

  rotation.py [--weights FOLDER] [--samples N] [--json FILE]

As language.py, whose model, samples, text and figures it takes: the trained decoder as it is and with outlier channels, each
quantized by `detent quantize --weights-only --set rotation=off` and `on`."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from language import LENGTH, ROOT, build_decoder, inject_outliers, windows

DETENT = ROOT / "build" / "detent"

FORMATS: dict[str, list[object]] = {
    "4 bits, block 32": ["--block-size", 32],
    "4 bits, symmetric, whole channels": ["--block-size", "channel", "--set", "weights-form=qdq", "--set", "weight-symmetric"],
    "2 bits, block 32": ["--bits", 2, "--block-size", 32],
    "4 bits, block 128": ["--block-size", 128],
}
METHODS = ("nearest", "auto")


def detent(*words: object) -> str:
    return subprocess.run([str(word) for word in (DETENT, *words)], capture_output=True, text=True, check=True).stdout


def quality(
    model: pathlib.Path, target: pathlib.Path, samples: pathlib.Path, held_out: pathlib.Path, options: list[object]
) -> dict:
    """What `detent compare` tells of the next tokens."""
    command = ["quantize", model, "-o", target, "--weights-only", "--no-bench", "--op-types", "MatMul", "--set", "accuracy-level=1"]
    detent(*command, *options, *(["--calibration-data", samples, "--batch-size", 1] if "auto" in options else []))
    told = detent("compare", model, target, "--calibration-data", held_out, "--batch-size", 1, "--outputs-only", "--json")
    return json.loads(told)["next_tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=pathlib.Path, default=build_decoder.TRAINED, help="what train_decoder.py wrote")
    parser.add_argument("--samples", type=int, default=64, help=f"windows of {LENGTH} tokens for calibration")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rows: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        plain, outliers = build_decoder.build(work / "plain", options.weights), work / "outliers"
        inject_outliers.inject_folder(plain, outliers)
        text = windows(plain, options.weights / "calibration.txt")
        np.save(work / "ids.npy", text[np.linspace(0, len(text) - 1, min(options.samples, len(text))).astype(int)])
        np.save(work / "held_out.npy", windows(plain, options.weights / "held_out.txt"))
        for form, words in FORMATS.items():
            for method in METHODS:
                for model in (plain, outliers):
                    for rotation in ("off", "on"):
                        target = work / f"made-{len(rows)}-{model.name}-{rotation}"
                        given = [*words, "--set", f"weights-method={method}", "--set", f"rotation={rotation}"]
                        found = quality(model, target, work / "ids.npy", work / "held_out.npy", given)
                        rows.setdefault(f"{form}, `{method}`", []).append(found)
                        print(form, method, model.name, rotation, found, file=sys.stderr, flush=True)
    print("| | as it is | rotated | outliers | outliers, rotated |\n|---|---|---|---|---|")
    for row, found in rows.items():
        cells = [f"{100 * (q['perplexity'] / q['float_perplexity'] - 1):+.2f} %, {q['kl_divergence']:.4f}" for q in found]
        print(f"| {row} | " + " | ".join(cells) + " |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
