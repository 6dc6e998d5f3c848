#!/usr/bin/env python3
"""What a cache of 8 or 4 bits costs the trained decoder of scripts/build_decoder.py, beside the float model: a table in Markdown.

  kv_caches.py [--samples 64]

Scales come from windows of calibration.txt, figures from held_out.txt. This interpreter needs numpy, onnx and tokenizers."""

import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy as np
from language import ROOT, build_decoder, windows

CACHES = {
    "int8": ["int8"],
    "int8, a scale for each channel": ["int8", "--set", "kv-cache-per-channel"],
    "int4": ["int4"],
    "int4, a scale for each channel": ["int4", "--set", "kv-cache-per-channel"],
}


def detent(*words: object) -> str:
    command = [str(word) for word in (ROOT / "build" / "detent", *words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=64, help="windows for calibration")
    options = parser.parse_args()
    print("| cache | perplexity, float | perplexity | KL divergence | the same next token |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        model = build_decoder.build(work / "float", build_decoder.TRAINED)
        for text in ("calibration", "held_out"):
            ids = windows(model, build_decoder.TRAINED / f"{text}.txt")
            chosen = np.linspace(0, len(ids) - 1, min(options.samples, len(ids))).astype(int)
            np.save(work / f"{text}.npy", ids[chosen] if text == "calibration" else ids)
        for number, (label, cache) in enumerate(CACHES.items()):
            out = work / str(number)
            given = ["--calibration-data", work / "calibration.npy", "--batch-size", 1, "--no-bench", "--quiet"]
            detent("quantize", model, "-o", out, "--preset", "none", "--kv-cache", *cache, *given)
            data = ["--calibration-data", work / "held_out.npy", "--batch-size", 1, "--outputs-only", "--json"]
            told = json.loads(detent("compare", model, out, *data))["next_tokens"]
            figures = f"{told['float_perplexity']:.3f} | {told['perplexity']:.3f} | {told['kl_divergence']:.2g}"
            print(f"| {label} | {figures} | {100 * told['agreement']:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
