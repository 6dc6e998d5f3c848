#!/usr/bin/env python3
"""Runs a page of docs/recipes/ as it stands, and prints its table in Markdown.

  recipes.py NAME        NAME: classifier, detector, encoder, language-model, voice

The page's first block fetches the model. What the blocks print goes to standard error as well."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PEAK = ("peak memory of the run", r"peak memory ([\d.]+ MiB)")
OUTPUT = r"^ +([\d.]+) +[\d.]+ +[\d.]+ +"  # SQNR in the first table of `detent compare`
# The page, both files, and of each row its name and where its figure stands; with two figures, both models'.
RECIPES = {
    "classifier": (
        "classifier",
        ["models/opennsfw.onnx", "opennsfw.int8.onnx"],
        "int8",
        [
            ("SQNR on 4 other photos, dB", r"sqnr_db=([\d.]+)"),
            ("largest change of a probability", r"max_abs=([\d.]+)"),
            PEAK,
        ],
    ),
    "detector": (
        "detector",
        ["models/nudenet_320n.onnx", "nudenet.int8.onnx"],
        "int8",
        [
            ("SQNR on 6 other photos, dB", OUTPUT + "output0"),
            ("SQNR of the scores alone, dB", r"its scores .*?have ([\d.]+) dB"),
            PEAK,
        ],
    ),
    "encoder": (
        "sentence-encoder",
        ["models/minilm.onnx", "minilm.int8.onnx"],
        "int8",
        [
            ("SQNR on 32 other lines, dB", OUTPUT + "last_hidden_state"),
            ("cosine", r"^ +[\d.]+ +([\d.]+) +[\d.]+ +last_hidden_state"),
            PEAK,
        ],
    ),
    "language-model": (
        "language-model",
        ["decoder/model.onnx", "decoder-q4/model.onnx"],
        "4 bits",
        [
            ("perplexity of other text, float", r"of the float model ([\d.]+)"),
            ("perplexity of other text", r"perplexity ([\d.]+), of"),
            ("the same next token", r"the same next token at ([\d.]+ %)"),
            PEAK,
        ],
    ),
    "voice": (
        "voice",
        ["models/piper/en_US-joe-medium.onnx", "joe.fp16.onnx"],
        "fp16",
        [
            ("SQNR of the sound, dB", r"sqnr_db=([\d.]+)"),
            ("SQNR of the sound with int8-dynamic, dB", r"sqnr_db=[\d.]+.*?sqnr_db=([\d.]+)"),
        ],
    ),
}


def size(name: str) -> str:
    return f"{(ROOT / 'build' / name).stat().st_size / 2**20:.1f} MiB"


def printed(page: pathlib.Path) -> str:
    """What the page's blocks print."""
    text, environment = "", {"PYTHONPATH": str(ROOT / "build" / "python"), **os.environ}
    for language, block in BLOCK.findall(page.read_text()):
        command = ["bash", "-ec", block] if language == "sh" else [sys.executable, "-c", block]
        ran = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        sys.stderr.write(ran.stdout)
        if ran.returncode != 0:
            sys.exit(f"exit status {ran.returncode} from {page.name}")
        text += ran.stdout
    return text


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in RECIPES:
        sys.exit(__doc__)
    page, files, made, rows = RECIPES[sys.argv[1]]
    text = printed(ROOT / "docs" / "recipes" / f"{page}.md")
    print(f"| | float | {made} |\n|---|---|---|\n| file | {' | '.join(map(size, files))} |")
    for name, pattern in rows:
        found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
        if not found:
            sys.exit(f"{page}.md prints no {name}")
        figure = f"{float(found[1]):.4g}" if re.fullmatch(r"[\d.]+", found[1]) else found[1]
        print(f"| {name} | | {figure} |")


if __name__ == "__main__":
    main()
