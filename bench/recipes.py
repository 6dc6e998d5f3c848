#!/usr/bin/env python3
"""Runs a page of docs/recipes/ as it stands, and prints its table in Markdown.

  recipes.py NAME        NAME: classifier, detector, encoder, language-model, voice

The page's first block fetches the model. What the blocks print goes to standard error as well."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PEAK = ("peak memory of the run", r"peak memory ([\d.]+ MiB)")
OUTPUT = r"^ +([\d.]+) +[\d.]+ +[\d.]+ +"  # SQNR in the first table of `detent compare`
# The page, the float model's file and the others, their names, and of each row its name and where its figures stand.
RECIPES = {
    "classifier": (
        "classifier",
        ["models/opennsfw.onnx", "opennsfw.int8.onnx"],
        ["int8"],
        [
            ("SQNR on 4 other photos, dB", r"sqnr_db=([\d.]+)"),
            ("largest change of a probability", r"max_abs=([\d.]+)"),
            PEAK,
        ],
    ),
    "detector": (
        "detector",
        ["models/nudenet_320n.onnx", "nudenet.int8.onnx"],
        ["int8"],
        [
            ("SQNR on 6 other photos, dB", OUTPUT + "output0"),
            ("SQNR of the scores alone, dB", r"its scores .*?have ([\d.]+) dB"),
            PEAK,
        ],
    ),
    "encoder": (
        "sentence-encoder",
        ["models/minilm.onnx", "minilm.int8.onnx"],
        ["int8"],
        [
            ("SQNR on 32 other lines, dB", OUTPUT + "last_hidden_state"),
            ("cosine", r"^ +[\d.]+ +([\d.]+) +[\d.]+ +last_hidden_state"),
            PEAK,
        ],
    ),
    "language-model": (
        "language-model",
        ["decoder/model.onnx", "decoder-q4/model.onnx"],
        ["4 bits"],
        [
            ("perplexity of other text", r"perplexity ([\d.]+), of the float model (?P<float>[\d.]+)"),
            ("the same next token", r"the same next token at ([\d.]+ %)"),
            PEAK,
        ],
    ),
    "voice": (
        "voice",
        ["models/piper/en_US-joe-medium.onnx", "joe.fp16.onnx", "joe.int8-dynamic.onnx"],
        ["fp16", "int8-dynamic"],
        [("SQNR of the sound, dB", r"sqnr_db=([\d.]+).*sqnr_db=([\d.]+)")],
    ),
}


def size(name: str) -> str:
    """With the data beside it."""
    path = ROOT / "build" / name
    return f"{sum(file.stat().st_size for file in (path, *path.parent.glob(path.name + '*data'))) / 2**20:.1f} MiB"


def printed(page: pathlib.Path) -> str:
    """What the page's blocks print."""
    text, environment = "", {**os.environ, "PYTHONPATH": str(ROOT / "build" / "python")}
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
    for folder in {(ROOT / "build" / name).parent for name in files[1:]} - {ROOT / "build"}:
        shutil.rmtree(folder, ignore_errors=True)  # a result of an earlier run
    text = printed(ROOT / "docs" / "recipes" / f"{page}.md")
    print(f"| | float | {' | '.join(made)} |\n" + "|---" * (len(made) + 2) + "|")
    print(f"| file | {' | '.join(map(size, files))} |")
    for name, pattern in rows:
        found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
        if not found:
            sys.exit(f"{page}.md prints no {name}")
        short = lambda text: f"{float(text):.4g}" if re.fullmatch(r"[\d.]+", text) else text
        figures = [found.groupdict().get("float", ""), *found.groups()[: len(made)]]
        print(f"| {name} | {' | '.join(map(short, figures))} |".replace("|  |", "| |"))


if __name__ == "__main__":
    main()
