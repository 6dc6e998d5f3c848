#!/usr/bin/env python3
"""open_nsfw for each NPU, with 14 photographs: a table in Markdown. Needs scripts/fetch_models.py opennsfw photos.

npu.py [TARGET]..."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ROOT / "build" / "models"
TARGETS = ("qnn", "qnn:a16", "amd-npu:xint8", "amd-npu:a8w8", "amd-npu:a16w8")


def row(target: str, output: pathlib.Path) -> str:
    options = ["--images", MODELS / "photos", "--image-preset", "255", "--shape", "input:0:1x224x224x3", "--target", target]
    command = [
        ROOT / "build" / "detent",
        "quantize",
        MODELS / "opennsfw.onnx",
        "-o",
        output,
        *options,
        "--no-bench",
        "--json",
        "-q",
    ]
    told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    summary = next(note for note in told["notes"] if note.startswith(f"{target}: ") and "accepted" in note)
    counts = [re.search(pattern, summary) for pattern in (r"(\d+) nodes? accepted", r"(\d+) left to the CPU")]
    accepted, on_cpu = (found[1] if found else "0" for found in counts)
    return f"| `{target}` | {told['accuracy']['sqnr_db']:.1f} | {accepted}, {on_cpu} |"


def main() -> None:
    print("| target | SQNR of the worst output, dB | nodes accepted, left to the CPU |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for target in sys.argv[1:] or TARGETS:
            print(row(target, pathlib.Path(folder) / "q.onnx"), flush=True)


if __name__ == "__main__":
    main()
