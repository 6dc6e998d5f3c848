#!/usr/bin/env python3
"""Quantizes trained models with detent and compares their scores with the float models' on held-back data.

    demo.py [NAME...]       NAME: ppocr_cls opennsfw (default: both); DETENT names the binary, otherwise build/detent

Every memory figure is the peak that the operating system reports for a separate process. This process stays small on
purpose (no numpy here): Linux counts a parent's memory at the moment of the fork as its child's."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parent.parent / "build"
DETENT = os.environ.get("DETENT", str(BUILD / "detent"))
TITLES = {
    "ppocr_cls": "ppocr_cls: is a line of text upside down? 500 held-back lines, calibrated on 64 others; for size",
    "opennsfw": "opennsfw: a ResNet-50's features tell handwritten digits apart; 250 held back, calibrated on 64 others",
}
# So small a network runs faster in float on most machines, and would stay so.
OPTIONS = {"ppocr_cls": ["--optimize-for", "size"], "opennsfw": []}


def measured(command):
    """Runs `command`; returns its standard output, seconds and peak memory in bytes."""
    start = time.perf_counter()
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"demo: exit status {process.returncode} from: {' '.join(process.args)}")
    return output, time.perf_counter() - start, usage.ru_maxrss * 1024


def python(script, *arguments):
    return measured([sys.executable, HERE / script, *arguments])


def megabytes(count):
    return f"{count / 1e6:.2f} MB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def score(task, model, work, name):
    """The column of one model: size, accuracy, milliseconds, peak memory."""
    output, _, peak = python("score.py", model, work / "test.npy", work / f"{name}.npy")
    right = python("tasks.py", "accuracy", task, work, work / "features.npy", work / f"{name}.npy")[0]
    return [megabytes(os.path.getsize(model)), f"{100 * float(right):.1f} %", f"{float(output):.2f}", megabytes(peak)]


def demo(task, work):
    target, profile = BUILD / "demo" / f"{task}.int8.onnx", BUILD / "demo" / f"{task}.profile.yaml"
    python("tasks.py", "prepare", task, BUILD / "models", work)
    command = [
        DETENT,
        "quantize",
        "--no-bench",
        work / "model.onnx",
        "-o",
        target,
        "--calibration-data",
        work / "calibration",
        "--profile",
        profile,
        *OPTIONS[task],
    ]
    _, seconds, peak = measured(command)
    if (work / "train.npy").is_file():
        python("score.py", work / "model.onnx", work / "train.npy", work / "features.npy")
    columns = [score(task, work / "model.onnx", work, "float"), score(task, target, work, "int8")]
    print(f"\n{TITLES[task]}\n  {'':<16}{'float':>12}{'int8':>12}")
    for row in zip(["size", "accuracy", "ms per sample", "peak memory"], *columns):
        print("  {:<16}{:>12}{:>12}".format(*row))
    print(f"  detent quantize took {seconds:.1f} s, peak memory {megabytes(peak)}")
    print(f"  wrote {os.path.relpath(target)} and {os.path.relpath(profile)}", flush=True)


def main(tasks):
    for task in tasks:
        if task not in TITLES:
            sys.exit(f"demo: no such model: {task} (there are: {', '.join(TITLES)})")
    if not shutil.which(DETENT):
        sys.exit(f"demo: {DETENT} does not exist; run make first")
    (BUILD / "demo").mkdir(parents=True, exist_ok=True)
    for task in tasks:
        with tempfile.TemporaryDirectory(dir=BUILD / "demo") as work:
            demo(task, pathlib.Path(work))
    print("\nPeak memory of inference includes Python with NumPy and ONNX Runtime itself.")


if {"-h", "--help"} & set(sys.argv[1:]):
    sys.exit(print(__doc__))
main(sys.argv[1:] or list(TITLES))
