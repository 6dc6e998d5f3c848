#!/usr/bin/env python3
"""What runtimes make of trained models: which nodes they take, of how many `detent check` says so rightly, and the score there, for
detent with the runtime's target, for detent's default, and for a peer.

    targets.py [COLUMN ...] [--openvino-python PYTHON] [--qnn-python PYTHON] [--ort] [--samples N] [--preset NAME]
               [--json FILE]

COLUMN and data are those of scores.py. PYTHON has openvino, or onnxruntime-qnn and onnxruntime; besides onnx and numpy. --ort: ONNX
Runtime on this CPU as well. --samples: only so many test samples. --preset: of detent; plain measures and tries nothing."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import HERE, ToolFailed, environment
from scores import COLUMNS, Job, available


class TargetJob(Job):
    """A column whose models run in one of the runtimes."""

    target, script, python, preset = "", "", "", "balanced"
    static = False
    kernels: dict[str, Any] = {}

    def infer(self, model: Path, results: Path) -> None:
        if not self.script or model.name == "model.onnx":
            return super().infer(model, results)
        samples = next(self.folder.glob("test.np[yz]"))
        checked = self.folder / "checked.json"
        checked.write_text(self.run([self.detent, "check", model, "--target", self.target, "--json"]))
        batch = 1 if self.static else self.column.batch
        told = self.run([self.python, f"{HERE}/{self.script}", model, samples, results, batch, checked])
        self.kernels = json.loads(told.strip().splitlines()[-1])
        return None

    def keep(self, count: int) -> None:
        """The first of the test samples alone."""
        for path in self.folder.glob("labels.json"):
            path.write_text(json.dumps(json.loads(path.read_text())[:count]))
        for path in [*self.folder.glob("test.np[yz]"), *self.folder.glob("labels.npy")]:
            data = np.load(path)
            if isinstance(data, np.ndarray):
                np.save(path, data[:count])
            else:
                np.savez(path, **{name: values[:count] for name, values in data.items()})

    def shapes(self) -> list[str]:
        """Those of the first calibration sample, for runtimes that want them."""
        sample = np.load(min((self.folder / "calibration").iterdir()))
        return [word for name in sample for word in ("--shape", f"{name}:{'x'.join(map(str, sample[name].shape))}")]

    def quantize_here(self, preset: str, *options: Any) -> None:
        data = self.folder / "calibration"
        shapes = self.shapes() if self.static else []
        given = ["--no-bench", "-o", self.out, "--calibration-data", data, *shapes, *options]
        self.run_detent("quantize", *given, preset=preset)


Quantize = Callable[[TargetJob], None]


@dataclass(frozen=True)
class Runtime:
    target: str
    script: str
    peer: tuple[str, str]  # its name, and what ort_quantize.py calls it
    static: bool = False
    runs_floats: bool = False  # the float model's score is taken there too
    more: tuple[str, ...] = ()  # other targets that it runs

    def rows(self) -> dict[str, Quantize]:
        own = {
            f"detent --target {name}": lambda job, n=name: job.quantize_here(job.preset, "--target", n) for name in self.targets()
        }
        name, method = self.peer
        return {
            **own,
            "detent, default": lambda job: job.quantize_here(job.preset),
            name: lambda job: job.quantize_peer(sys.executable, "ort_quantize.py", method),
        }

    def targets(self) -> tuple[str, ...]:
        return (self.target, *self.more)


MINMAX = ("quantize_static, minmax", "minmax")
RUNTIMES = {
    "openvino": Runtime("openvino", "in_openvino.py", MINMAX, runs_floats=True),
    "qnn": Runtime("qnn", "in_qnn.py", ("get_qnn_qdq_config", "qnn"), static=True, more=("qnn:a16",)),
    "ort": Runtime("ort-cpu", "in_ort.py", MINMAX),
}


def rows_of(job: TargetJob, runtime: Runtime) -> list[dict]:
    expected = job.score("model.onnx", "float.npy")
    job.quantize_here("plain", "--set", f"prepared-output={job.folder / 'prepared.onnx'}")
    job.target, job.script, rows = runtime.target, runtime.script, []
    if runtime.runs_floats:
        shutil.copyfile(job.folder / "model.onnx", job.folder / "float.onnx")
        expected = job.score("float.onnx")
    print(
        f"{job.column.title}: float {100 * expected:.1f}{' there' if runtime.runs_floats else ''}, in {runtime.target}", flush=True
    )
    for name, quantize in runtime.rows().items():
        job.out.unlink(missing_ok=True)
        try:
            quantize(job)
            score = job.score(job.out.name)
        except ToolFailed as error:
            print(f"  {name}: {str(error).strip().splitlines()[-1]}", flush=True)
            continue
        row = {"runtime": runtime.target, "column": job.column.title, "tool": name, "float": expected, "score": score}
        rows.append(row | job.kernels)
        counts = ", ".join(f"{job.kernels[what]} {what}" for what in ("integers", "float", "not quantized"))
        whole = {True: "taken as a whole; ", False: "not taken as a whole; "}.get(job.kernels.get("whole"), "")
        steps = f"; at most {job.kernels['steps']} steps from float arithmetic" if job.kernels.get("steps") is not None else ""
        share = f" ({100 * score / expected:.1f} % of float)" if expected else ""  # few samples may not score at all
        print(f"  {name}: {100 * score:.1f}{share}; {whole}{counts}; ", end="")
        print(f"check is right of {job.kernels['same']} of {job.kernels['told']} nodes{steps}", flush=True)
        for line in job.kernels["wrong"]:
            print(f"    not of {line}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("columns", nargs="*", metavar="COLUMN")
    parser.add_argument("--openvino-python")
    parser.add_argument("--qnn-python")
    parser.add_argument("--ort", action="store_true")
    parser.add_argument("--models", type=Path, default=Path("build/models"))
    parser.add_argument("--detent", default="build/detent")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--preset", default="balanced")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    a.detent, a.models = os.path.abspath(a.detent), a.models.resolve()
    a.memory_limit_mb, a.time_limit = None, 3600
    pythons = {"openvino": a.openvino_python, "qnn": a.qnn_python, "ort": sys.executable if a.ort else None}
    chosen = [name for name, python in pythons.items() if python]
    if not chosen:
        parser.error("give one or more of --openvino-python, --qnn-python, --ort")
    rows = []
    for runtime in chosen:
        for name in a.columns or available(a.models):
            with tempfile.TemporaryDirectory(prefix="detent-targets-") as folder:
                job = TargetJob(COLUMNS[name], a, environment(None), Path(folder))
                job.python, job.static, job.preset = os.path.abspath(pythons[runtime]), RUNTIMES[runtime].static, a.preset
                if a.samples:
                    job.keep(a.samples)
                rows += rows_of(job, RUNTIMES[runtime])
    head = ["model", "quantized by", "score, float", "score", "integers, float, not quantized", "`check` right"]
    print(f"\n| {' | '.join(head)} |\n" + "|---" * len(head) + "|")
    for row in rows:
        kernels = ", ".join(str(row[what]) for what in ("integers", "float", "not quantized"))
        scores = f"{100 * row['float']:.1f} | {100 * row['score']:.1f}"
        print(f"| {row['column']} | {row['tool']} | {scores} | {kernels} | {row['same']} of {row['told']} |")
    print()
    for runtime in {row["runtime"]: None for row in rows}:
        same, told = (sum(row[what] for row in rows if row["runtime"] == runtime) for what in ("same", "told"))
        print(f"{runtime}: check is right of {same} of {told} nodes: {100 * same / max(told, 1):.2f} %")
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
