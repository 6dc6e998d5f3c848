#!/usr/bin/env python3
"""How well trained models do their tasks after quantization, by every method of detent and of its peers: one table.

  scores.py [COLUMN ...] [--quark-python PYTHON] [--json FILE]
  COLUMN: direction digits detector minilm minilm-matmul lines files speech

Models and data are those of scripts/fetch_models.py. All tools quantize the same float model, the one that detent prepares (opset
raised, BatchNormalization folded), so that ranges decide. Activations have 8 bits and a zero point, weights are int8 per channel;
rows with power-of-two scales have no zero point, and Quark's XINT8 has its weights per tensor.

Scores are taken with Q/DQ computed in float (session.disable_quant_qdq): on an x86 CPU without VNNI ONNX Runtime's products of
uint8 and int8 saturate, and the table would show that and not the ranges. All rows of a column see the same samples."""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from calibration import available_mb, find_quark
from measure import HERE, ToolFailed, environment, measure
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph
from turns import Limits

DEMO = f"{HERE}/tasks_small.py"
DIGITS, DETECTOR, SENTENCES, LINES, FILES, SPEECH = (
    f"{HERE}/tasks_{name}.py" for name in ("digits", "detector", "sentences", "lines", "files", "speech")
)
CALIBRATION = 32
DETENT_METHODS = [
    "minmax",
    "minmax --set average",
    "percentile",
    "layerwise-percentile",
    "mse",
    "mse --set power-of-two-scale --set activation-symmetric",
    "entropy",
]
ORT_METHODS = ["minmax", "percentile", "entropy"]
QUARK_METHODS = ["minmax", "percentile", "layerwise-percentile", "mse", "entropy"]


@dataclass(frozen=True)
class Column:
    """`script` prepares `task` and judges results; tasks_common.py says how it is called."""

    title: str
    task: str
    script: str
    batch: int = 1
    op_types: tuple[str, ...] = ()


COLUMNS = {
    "direction": Column("PP-OCR direction, accuracy", "ppocr_cls", DEMO),
    "digits": Column("open_nsfw digits, accuracy", "opennsfw", DIGITS),
    "detector": Column("PP-OCR detector, F1", "ppocr_det", DETECTOR),
    "minilm": Column("MiniLM topics, accuracy", "minilm", SENTENCES, 16),
    "minilm-matmul": Column("MiniLM, only MatMul", "minilm", SENTENCES, 16, ("MatMul",)),
    "lines": Column("PP-OCR recogniser, lines", "ppocr_rec", LINES),
    "files": Column("Magika, as float", "magika", FILES, 20),
    "speech": Column("Silero VAD, steps", "silero_vad", SPEECH),
}


class NotRunnable(RuntimeError):
    """A model that a tool wrote and ONNX Runtime does not run."""

    def __init__(self, error: Exception):
        self.reason = f"ONNX Runtime does not run the model: {str(error).splitlines()[0]}"
        super().__init__(self.reason)


class Job:
    """One column at work: a folder with the task's samples, and what every tool needs to know."""

    def __init__(self, column: Column, a: argparse.Namespace, env: dict[str, str], folder: Path):
        self.column, self.threads, self.detent, self.folder = column, str(a.threads), a.detent, folder
        self.env, self.limits = env, Limits(a.memory_limit_mb or 0.6 * available_mb(), a.time_limit)
        self.out = folder / "quantized.onnx"
        self.run([sys.executable, column.script, "prepare", column.task, a.models, folder])
        for path in sorted((folder / "calibration").iterdir())[CALIBRATION:]:
            path.unlink()
        self.output = onnxruntime.InferenceSession(folder / "model.onnx").get_outputs()[-1].name

    def run(self, command: list[Any]) -> str:
        scratch = self.folder / "scratch"
        scratch.mkdir()
        try:
            env = {**self.env, "TMPDIR": str(scratch)}
            return measure([str(part) for part in command], env, str(scratch), self.limits.memory_mb, self.limits.seconds)["stdout"]
        finally:
            shutil.rmtree(scratch)

    def run_detent(self, verb: str, *options: Any, preset: str = "plain") -> None:
        selection = ["--op-types", ",".join(self.column.op_types)] if self.column.op_types else []
        self.run(
            [self.detent, verb, self.folder / "model.onnx", "--preset", preset, "--threads", self.threads, *selection, *options]
        )

    def calibrate(self) -> None:
        """The samples are run once for all methods; the model for the peers is made on the way."""
        self.run_detent("calibrate", "-o", self.folder / "statistics", "--calibration-data", self.folder / "calibration")
        self.quantize_detent("minmax", "--set", f"prepared-output={self.folder / 'prepared.onnx'}")

    def quantize_detent(self, method: str, *options: Any) -> None:
        statistics = ["--statistics", self.folder / "statistics"]
        self.run_detent("quantize", "--no-bench", "-o", self.out, *statistics, "--method", *method.split(), *options)

    def quantize_default(self) -> None:
        data = self.folder / "calibration"
        self.run_detent("quantize", "--no-bench", "-o", self.out, "--calibration-data", data, preset="balanced")

    def quantize_peer(self, python: str, script: str, method: str, *options: str) -> None:
        files = [self.folder / "prepared.onnx", self.out, self.folder / "calibration"]
        self.run([python, f"{HERE}/{script}", *files, method, self.threads, *options, *self.column.op_types])

    def infer(self, model: Path, results: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = int(self.threads)
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        data = np.load(next(self.folder.glob("test.np[yz]")), mmap_mode="r")
        inputs = {session.get_inputs()[0].name: data} if isinstance(data, np.ndarray) else dict(data)
        count, step = len(next(iter(inputs.values()))), self.column.batch
        batches = ({name: values[i : i + step] for name, values in inputs.items()} for i in range(0, count, step))
        np.save(results, np.concatenate([session.run([self.output], batch)[0] for batch in batches]))

    def score(self, model: str, results: str = "results.npy") -> float:
        """The float model's results are kept: tasks with a linear layer of their own fit it on them."""
        self.infer(self.folder / model, self.folder / results)
        files = [self.folder, self.folder / "float.npy", self.folder / results]
        return float(self.run([sys.executable, self.column.script, "accuracy", self.column.task, *files]))


@dataclass(frozen=True)
class Row:
    tool: str
    method: str
    quantize: Callable[[Job], None]

    def score(self, job: Job) -> float:
        """The model of the row before must not pass for this one's."""
        job.out.unlink(missing_ok=True)
        self.quantize(job)
        try:
            return job.score(job.out.name)
        except (Fail, InvalidGraph) as error:
            raise NotRunnable(error) from error


def rows_of(quark: str | None) -> list[Row]:
    rows = [Row("detent", "default", lambda job: job.quantize_default())]
    rows += [Row("detent, plain", method, lambda job, m=method: job.quantize_detent(m)) for method in DETENT_METHODS]
    ort = lambda method: lambda job: job.quantize_peer(sys.executable, "ort_quantize.py", method)
    rows += [Row("quantize_static", method, ort(method)) for method in ORT_METHODS]
    amd = lambda method: lambda job: job.quantize_peer(quark, "quark_quantize.py", method, "as-detent")
    named = lambda method: "mse, XINT8" if method == "mse" else method
    return rows + [Row("Quark", named(method), amd(method)) for method in QUARK_METHODS if quark]


def score_column(job: Job, rows: list[Row]) -> list[float | str]:
    """The scores of the float model and of all rows; of what failed, the reason."""
    scores: list[float | str] = [job.score("model.onnx", "float.npy")]
    job.calibrate()
    for row in rows:
        try:
            scores.append(row.score(job))
        except (ToolFailed, NotRunnable) as error:
            scores.append(error.reason)
        print(f"  {job.column.title}: {row.tool} {row.method}: {scores[-1]}", file=sys.stderr, flush=True)
    return scores


def show(names: list[tuple[str, str]], titles: list[str], columns: list[list[float | str]]) -> str:
    lines = [f"| tool | method | {' | '.join(titles)} |", "|---|---|" + "---|" * len(titles)]
    reasons = []
    for (tool, method), *scores in zip(names, *columns):
        cells = ["failed" if isinstance(score, str) else f"{100 * score:.1f}" for score in scores]
        lines.append(f"| {tool} | {f'`{method}`' if method else ''} | {' | '.join(cells)} |")
        reasons += [f"{tool} {method}, {title}: {score}" for title, score in zip(titles, scores) if isinstance(score, str)]
    return "\n".join(lines + ([""] + reasons if reasons else []))


def available(models: Path) -> list[str]:
    """The columns whose models were fetched."""
    found = [name for name, column in COLUMNS.items() if (models / f"{column.task}.onnx").is_file()]
    for name in sorted(set(COLUMNS) - set(found)):
        print(f"{name}: left out, {COLUMNS[name].task}.onnx was not fetched (scripts/fetch_models.py --help)")
    return found


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("columns", nargs="*", metavar="COLUMN", help="default: all whose models are there")
    p.add_argument("--models", type=Path, default=Path("build/models"), help="where scripts/fetch_models.py put them")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--quark-python", help="interpreter that has amd-quark, torch and onnxruntime; without it Quark is left out")
    p.add_argument("--detent", default="build/detent")
    p.add_argument("--runtime", help="ONNX Runtime library for detent")
    p.add_argument("--memory-limit-mb", type=float, help="limit of a child's own memory (default: 60 %% of what is available)")
    p.add_argument("--rows", help="only rows of these tools or methods, as in 'default,quantize_static'")
    p.add_argument("--time-limit", type=float, default=3600, help="seconds for one run of one tool")
    p.add_argument("--json", help="write the scores to this file")
    a = p.parse_args()
    unknown = sorted(set(a.columns) - set(COLUMNS))
    if unknown:
        p.error(f"no such column: {', '.join(unknown)} (there are: {', '.join(COLUMNS)})")
    if not os.path.exists(a.detent):
        p.error(f"{a.detent} does not exist")
    a.detent, a.models = os.path.abspath(a.detent), a.models.resolve()
    a.columns = a.columns or available(a.models)
    return a


def main() -> None:
    a = parse()
    env = environment(a.runtime)
    rows = rows_of(find_quark(a.quark_python, env))
    if a.rows:
        rows = [row for row in rows if {row.tool, row.method} & set(a.rows.split(","))]
    scores = []
    for name in a.columns:
        with tempfile.TemporaryDirectory(prefix="detent-scores-") as folder:
            scores.append(score_column(Job(COLUMNS[name], a, env, Path(folder)), rows))
    names = [("float", ""), *((row.tool, row.method) for row in rows)]
    print("\n" + show(names, [COLUMNS[name].title for name in a.columns], scores))
    if a.json:
        record = [{"tool": tool, "method": method, **dict(zip(a.columns, cells))} for (tool, method), *cells in zip(names, *scores)]
        machine = {"onnxruntime": onnxruntime.__version__, "machine": platform.machine(), "calibration_samples": CALIBRATION}
        Path(a.json).write_text(json.dumps({**machine, "rows": record}, indent=1))


if __name__ == "__main__":
    main()
