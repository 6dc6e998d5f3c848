#!/usr/bin/env python3
"""Latency of quantized models over that of the float model, as ONNX Runtime runs them by default: one table.

  latency.py [MODEL[,NAME:1x3x224x224 ...] | FOLDER | COLUMN ...] [--threads 1 2] [--seconds 2] [--work FOLDER] [--json FILE]

A COLUMN is one of scores.py, with that task's samples; without arguments, all of them. Other models take the samples in
samples/NAME beside them, or random ones. Each is quantized by detent's default, by --preset plain, by --format int8-dynamic and
by onnxruntime's quantize_static (per channel, int8 weights, from the float model that detent prepares). All run in turns in one
process of `detent bench`, and ratios are medians over turns: by wall time / by processor time, which tells more on a busy
machine; then SQNR of the worst output, in dB. For a processor without VNNI, run it with LD_PRELOAD=build/tests/libavx2_cpu.so."""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import HERE, ToolFailed, environment, make_samples, measure
from scores import CALIBRATION, COLUMNS

FORMS = ["default", "plain", "int8-dynamic", "quantize_static"]
TIMED_SAMPLES = 4


class Work:
    """A folder with one model, its samples, and what the tools make of them."""

    def __init__(self, a: argparse.Namespace, spec: str, folder: Path):
        self.a, self.folder, self.env = a, folder, environment(a.runtime)
        folder.mkdir(parents=True, exist_ok=True)
        path, *shapes = spec.split(",")
        self.name = Path(path).stem
        if path in COLUMNS:
            self.model, self.data = folder / "model.onnx", folder / "calibration"
            if not self.data.exists():
                task = COLUMNS[path]
                subprocess.run([sys.executable, task.script, "prepare", task.task, a.models, folder], check=True)
            for sample in sorted(self.data.iterdir())[CALIBRATION:]:
                sample.unlink()
        else:
            self.model, self.data = Path(path).resolve(), Path(path).resolve().parent / "samples" / self.name
            if self.data.exists():
                return
            self.data = folder / "samples/npz"
            make_samples(str(self.model), str(folder / "samples"), 8, [x for s in shapes for x in ("--shape", s)])

    def detent(self, *arguments: Any) -> str:
        return measure([self.a.detent, *map(str, arguments)], self.env, memory_mb=self.a.memory_limit_mb)["stdout"]

    def make(self, form: str) -> Path:
        out, prepared = self.folder / f"{form}.onnx", self.folder / "prepared.onnx"
        if out.exists():
            return out
        given = ["--calibration-data", self.data, "--threads", self.a.threads[0]]
        if form == "default":
            self.detent("quantize", self.model, "-o", out, *given)
        elif form == "int8-dynamic":
            self.detent("quantize", self.model, "-o", out, "--format", form, "--no-bench", *given)
        elif form == "plain":
            plain = ["--preset", "plain", "--set", f"prepared-output={prepared}", "--no-bench"]
            self.detent("quantize", self.model, "-o", out, *plain, *given)
        else:
            command = [sys.executable, HERE + "/ort_quantize.py", prepared, out, self.data, "minmax", self.a.threads[0]]
            measure([str(part) for part in command], self.env, memory_mb=self.a.memory_limit_mb)
        return out

    def bench(self, models: list[Path], threads: int, *more: Any) -> list[dict[str, Any]]:
        given = ["--calibration-data", self.data, "--samples", TIMED_SAMPLES, "--threads", threads]
        return json.loads(self.detent("bench", *models, "--json", "--no-memory", *given, *more))["models"]

    def sqnr_db(self, model: Path) -> float:
        compared = json.loads(self.detent("compare", self.model, model, "--calibration-data", self.data, "--json"))
        return min(output["sqnr_db"] or math.inf for output in compared["outputs"])

    def runs(self, form: str) -> Path | None:
        """The model, if it was made and the runtime runs it."""
        try:
            model = self.make(form)
            self.bench([model], 1, "--runs", 1)
            return model
        except ToolFailed as failed:
            print(f"{self.name}, {form}: {str(failed).strip().splitlines()[-1][:200]}", file=sys.stderr)
            return None

    def rows(self) -> list[dict[str, Any]]:
        made = {form: model for form in ("plain", *FORMS) if (model := self.runs(form))}
        sqnr = {form: self.sqnr_db(model) for form, model in made.items()}
        rows = []
        for threads in self.a.threads:
            base, *others = self.bench([self.model, *made.values()], threads, "--seconds", self.a.seconds)
            ratios = {form: [m["ratio"], m["cpu_ratio"], sqnr[form]] for form, m in zip(made, others, strict=True)}
            cost = {"ms": 1e3 * base["median_seconds"], "cpu_ms": 1e3 * base["cpu_seconds"], "waiting": base["waiting_share"]}
            rows.append({"model": self.name, "threads": threads, **cost, **ratios})
        return rows


def table(rows: list[dict[str, Any]]) -> str:
    def cell(ratios: list[float] | None) -> str:
        if not ratios:
            return "-"
        return " / ".join(f"{ratio:.2f}" for ratio in ratios[:2]) + "".join(f" ({db:.1f})" for db in ratios[2:])

    lines = ["| model | threads | float ms / CPU ms | " + " | ".join(FORMS) + " |", "|---|---|---|" + "---|" * len(FORMS)]
    for row in rows:
        cells = [cell(row.get(form)) for form in FORMS]
        lines.append(f"| {row['model']} | {row['threads']} | {row['ms']:.2f} / {row['cpu_ms']:.2f} | {' | '.join(cells)} |")
    for threads in sorted({row["threads"] for row in rows}):
        means = []
        for form in FORMS:
            found = [row[form] for row in rows if row["threads"] == threads and form in row]
            means.append([math.exp(sum(math.log(pair[i]) for pair in found) / len(found)) for i in (0, 1)] if found else None)
        lines.append(f"| geometric mean | {threads} | | {' | '.join(map(cell, means))} |")
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models_given", nargs="*", metavar="MODEL")
    p.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    p.add_argument("--seconds", type=float, default=2, help="of timed runs for each model")
    p.add_argument("--detent", default="build/detent")
    p.add_argument("--models", default="build/models", help="what scripts/fetch_models.py fetched")
    p.add_argument("--runtime", help="ONNX Runtime's library")
    p.add_argument("--work", help="keep quantized models there, and take those that are there")
    p.add_argument("--memory-limit-mb", type=float, default=0)
    p.add_argument("--json", help="also write the figures there")
    a = p.parse_args()
    a.detent, a.models = os.path.abspath(a.detent), os.path.abspath(a.models)
    specs = []
    for given in a.models_given or [name for name, column in COLUMNS.items() if not column.op_types]:
        specs += map(str, sorted(Path(given).glob("*.onnx"))) if os.path.isdir(given) else [given]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, spec in enumerate(specs):
            folder = Path(a.work or scratch).resolve() / Path(spec.split(",")[0]).stem
            print(f"{number + 1} of {len(specs)}: {spec}", file=sys.stderr)
            rows += Work(a, spec, folder).rows()
    if a.json:
        Path(a.json).write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
