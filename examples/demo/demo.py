#!/usr/bin/env python3
"""Quantizes trained models with detent's defaults and compares size, latency, score and memory with the float models'.

    demo.py [NAME...]       NAME: recogniser detector (default: both); DETENT names the binary, otherwise build/detent

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
ROOT = HERE.parent.parent
BUILD = ROOT / "build"
DETENT = os.environ.get("DETENT", str(BUILD / "detent"))
ROWS = ["size", "latency of a sample", "score", "peak memory"]
# Name: the script of its task, the model's name there, what the score is.
TASKS = {
    "recogniser": ("tasks_lines.py", "ppocr_rec", "lines of text that PP-OCR's recogniser reads without a mistake, of 300"),
    "detector": ("tasks_detector.py", "ppocr_det", "F1 of the boxes that PP-OCR's detector finds around lines of text, 48 pages"),
}


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


def task_script(name, *arguments):
    return measured([sys.executable, ROOT / "bench" / TASKS[name][0], *arguments])[0]


def megabytes(count):
    return f"{count / 1e6:.1f} MB"


def column(name, model, work, results):
    """Size, latency, score and peak memory of one model; `results` (.npy) gets what it makes of the held-back samples."""
    output, _, peak = measured([sys.executable, HERE / "score.py", model, work / "test.npy", results])
    score = float(task_script(name, "accuracy", TASKS[name][1], work, work / "float.npy", results))
    return [megabytes(os.path.getsize(model)), f"{float(output):.2f} ms", f"{100 * score:.1f} %", megabytes(peak)]


def quantize(name, work):
    """Both columns of the table, and a line on the run itself."""
    target, report = BUILD / "demo" / f"{name}.int8.onnx", BUILD / "demo" / f"{name}.html"
    task_script(name, "prepare", TASKS[name][1], BUILD / "models", work)
    command = [DETENT, "quantize", work / "model.onnx", "-o", target, "--calibration-data", work / "calibration"]
    print(
        f"\n{name}: detent quantize model.onnx -o {target.name} --calibration-data calibration/ --report {report.name}", flush=True
    )
    told, seconds, peak = measured([*command, "--report", report])
    print(told.rstrip())
    columns = [column(name, work / "model.onnx", work, work / "float.npy"), column(name, target, work, work / "int8.npy")]
    shown = " and ".join(os.path.relpath(path) for path in (target, report))
    return columns, f"{name}: took {seconds:.0f} s, at most {megabytes(peak)}; wrote {shown}"


def main(names):
    for name in names:
        if name not in TASKS:
            sys.exit(f"demo: no such model: {name} (there are: {', '.join(TASKS)})")
    if not shutil.which(DETENT):
        sys.exit(f"demo: {DETENT} does not exist; run make first")
    (BUILD / "demo").mkdir(parents=True, exist_ok=True)
    columns, lines = [], []
    for name in names:
        with tempfile.TemporaryDirectory(dir=BUILD / "demo") as work:
            both, line = quantize(name, pathlib.Path(work))
        columns += both
        lines.append(line)
    print("\n" + " " * 20 + "".join(f"{name:>26}" for name in names))
    print(" " * 20 + f"{'float':>13}{'int8':>13}" * len(names))
    for row, *values in zip(ROWS, *columns):
        print(f"{row:<20}" + "".join(f"{value:>13}" for value in values))
    print(f"\nmeasured in ONNX Runtime's default settings, on samples that calibration did not see:\n{chr(10).join(lines)}")
    for name in names:
        print(f"score of the {name}: {TASKS[name][2]}")
    print("Peak memory of inference includes Python with NumPy and ONNX Runtime itself.")


if {"-h", "--help"} & set(sys.argv[1:]):
    sys.exit(print(__doc__))
main(sys.argv[1:] or list(TASKS))
