#!/usr/bin/env python3
"""What OpenVINO makes of trained models: which products run on integers, of how many nodes `detent check` says so rightly, and
the score there, for `--target openvino`, for detent's default, and for ONNX Runtime's quantizer.

    targets.py [COLUMN ...] --openvino-python PYTHON [--json FILE]

COLUMN and data are those of scores.py. PYTHON has openvino, onnx and numpy."""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import HERE, ToolFailed, environment
from scores import COLUMNS, Job, available


class OpenVinoJob(Job):
    """A column whose models run in OpenVINO."""

    python = ""
    kernels: dict[str, Any] = {}

    def infer(self, model: Path, results: Path) -> None:
        samples = next(self.folder.glob("test.np[yz]"))
        checked = self.folder / "checked.json"
        checked.write_text(self.run([self.detent, "check", model, "--target", "openvino", "--json"]))
        told = self.run([self.python, f"{HERE}/in_openvino.py", model, samples, results, self.column.batch, checked])
        self.kernels = json.loads(told.splitlines()[-1])

    def quantize_for(self, target: str) -> None:
        data = self.folder / "calibration"
        self.run_detent("quantize", "--no-bench", "-o", self.out, "--calibration-data", data, "--target", target, preset="balanced")


ROWS = {
    "detent --target openvino": lambda job: job.quantize_for("openvino"),
    "detent, default": lambda job: job.quantize_default(),
    "quantize_static, minmax": lambda job: job.quantize_peer(sys.executable, "ort_quantize.py", "minmax"),
}


def rows_of(job: OpenVinoJob) -> list[dict]:
    expected = job.score("model.onnx", "float.npy")
    print(f"{job.column.title}: float {100 * expected:.1f}", flush=True)
    job.calibrate()
    rows = []
    for name, quantize in ROWS.items():
        quantize(job)
        try:
            score = job.score(job.out.name)
        except ToolFailed as error:
            print(f"  {name}: {error.reason}", flush=True)
            continue
        rows.append({"column": job.column.title, "tool": name, "float": expected, "score": score, **job.kernels})
        counts = ", ".join(f"{job.kernels[what]} {what}" for what in ("integers", "float", "not quantized"))
        print(f"  {name}: {100 * score:.1f} ({100 * score / expected:.1f} % of float); products: {counts}; ", end="")
        print(f"check is right of {job.kernels['same']} of {job.kernels['told']} nodes", flush=True)
        for line in job.kernels["wrong"]:
            print(f"    not of {line}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("columns", nargs="*", metavar="COLUMN")
    parser.add_argument("--openvino-python", required=True)
    parser.add_argument("--models", type=Path, default=Path("build/models"))
    parser.add_argument("--detent", default="build/detent")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    a.detent, a.models = os.path.abspath(a.detent), a.models.resolve()
    a.memory_limit_mb, a.time_limit = None, 3600
    OpenVinoJob.python = os.path.abspath(a.openvino_python)
    rows = []
    for name in a.columns or available(a.models):
        with tempfile.TemporaryDirectory(prefix="detent-targets-") as folder:
            rows += rows_of(OpenVinoJob(COLUMNS[name], a, environment(None), Path(folder)))
    same, told = (sum(row[what] for row in rows) for what in ("same", "told"))
    print(f"check is right of {same} of {told} nodes: {100 * same / max(told, 1):.2f} %")
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
