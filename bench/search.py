#!/usr/bin/env python3
"""Does any single format or preset, of detent's or of ONNX Runtime's, beat the front of `detent search`? One table a model.

  search.py [COLUMN | MODEL:DATA ...] [--points N] [--trials N] [--seconds S] [--threads N] [--work FOLDER] [--json FILE]

A COLUMN is one of scores.py, with that task's samples; without arguments, all of them. Points of the front are made again by the
commands that the search prints. They, the single formats and presets of detent, quantize_static and quantize_dynamic are run on the
same held-back share of the samples (error of the worst output), and timed in turns in one process of `detent bench` (processor
time). A model lies outside where no point of the front is within 2 % of it or better in error, time and bytes.

--trials: also a search by Optuna (NSGA-II over error, processor time and bytes), each trial a whole run of quantize_static with its
choice of types, ranges and of each product's place, as searches over quantization runs do; it needs optuna installed."""

import argparse
import contextlib
import io
import json
import logging
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import peers
from measure import HERE, ToolFailed, environment, measure
from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_dynamic, quantize_static
from scores import CALIBRATION, COLUMNS

SLACK = 1.02
CLEARLY = 0.9  # of a single format's figure
DETENT = {
    "default": [],
    "plain": ["--preset", "plain"],
    "for size": ["--optimize-for", "size"],
    "a16w8": ["--format", "a16w8"],
    "dynamic": ["--activations", "dynamic"],
    "8 bits in blocks": ["--weights-only", "--bits", "8"],
    "4 bits in blocks": ["--weights-only", "--bits", "4"],
}
METHODS = {"minmax": CalibrationMethod.MinMax, "percentile": CalibrationMethod.Percentile, "entropy": CalibrationMethod.Entropy}


@dataclass
class Figures:
    """Of a model beside the float one: both are run by ONNX Runtime's defaults."""

    name: str
    kind: str  # "float", "front", "detent" or "peer"
    error: float  # sum of squared errors over that of squares, of the worst output
    bytes: int = 0
    seconds: float = 0  # of a sample, processor time
    mixed: bool = False


class Judge:
    """Runs models on the samples that judge them."""

    def __init__(self, model: Path, data: Path, threads: int):
        files = sorted(data.glob("*.npz"))
        self.samples = [dict(np.load(path)) for path in files[-max(8, len(files) // 4) :]]
        self.threads, self.inferences = threads, 0
        self.float = self.outputs(model)

    def outputs(self, model: Path) -> list[list[np.ndarray]]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = self.threads, 3
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self.inferences += len(self.samples)
        return [session.run(None, sample) for sample in self.samples]

    def error(self, model: Path) -> float:
        found, worst = self.outputs(model), 0.0
        for output in range(len(self.float[0])):
            pairs = [(a[output], b[output]) for a, b in zip(self.float, found, strict=True)]
            if pairs[0][0].dtype.kind != "f" or any(a.shape != b.shape for a, b in pairs):
                continue
            noise = sum(float(np.sum((a.astype(np.float64) - b) ** 2)) for a, b in pairs)
            signal = sum(float(np.sum(a.astype(np.float64) ** 2)) for a, _ in pairs)
            worst = max(worst, noise / signal if signal > 0 else 0)
        return worst


class Comparison:
    """One model, its front, and all that is compared with it."""

    def __init__(self, a: argparse.Namespace, spec: str, folder: Path):
        self.a, self.folder, self.env = a, folder, environment(a.runtime)
        folder.mkdir(parents=True, exist_ok=True)
        if spec in COLUMNS:
            self.name, self.model, self.data = spec, folder / "model.onnx", folder / "calibration"
            task = COLUMNS[spec]
            if not self.data.exists():
                subprocess.run([sys.executable, task.script, "prepare", task.task, a.models, folder], check=True)
            for sample in sorted(self.data.iterdir())[CALIBRATION:]:
                sample.unlink()
        else:
            model, _, data = spec.partition(":")
            self.name, self.model, self.data = Path(model).stem, Path(model).resolve(), Path(data).resolve()
        self.prepared = folder / "prepared.onnx"  # opset raised, BatchNormalization folded: what peers do best with
        self.judge = Judge(self.model, self.data, a.threads)
        self.rows: list[tuple[Figures, Path]] = [(Figures("fp32", "float", 0.0), self.model)]
        self.notes: list[str] = []

    def detent(self, *words: Any) -> dict[str, Any]:
        return measure([self.a.detent, *map(str, words)], self.env, memory_mb=self.a.memory_limit_mb)

    def add(self, name: str, kind: str, make: Callable[[Path], Any], mixed: bool = False) -> None:
        path = self.folder / f"{kind}-{name.replace(' ', '-')}.onnx"
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                make(path)
            error = self.judge.error(path)
        except Exception as failed:  # a peer raises whatever it likes; the row says that there is no model
            self.notes.append(f"{name}: {str(failed).splitlines()[0][:150]}")
            return
        self.rows.append((Figures(name, kind, error, mixed=mixed), path))

    def search(self) -> None:
        given = ["--calibration-data", self.data, "--threads", self.a.threads]
        out = self.folder / "found"
        told = self.detent("search", self.model, "-o", out, *given, "--points", self.a.points, "--quiet")
        front = json.loads((out / "front.json").read_text())
        self.search_seconds, self.inferences = told["cpu_s"], front["inferences"]
        for point in front["points"]:
            if point["on_front"] and point["command"]:
                self.add(point["name"], "front", self.by(point["command"]), not point["single"])
        for name, words in DETENT.items():
            more = ["--set", f"prepared-output={self.prepared}"] if name == "plain" else []
            self.add(
                name, "detent", self.by(shlex.join(map(str, ["detent", "quantize", self.model, "-o", "", *given, *words, *more])))
            )

    def by(self, command: str) -> Callable[[Path], Any]:
        words = shlex.split(command)
        words[words.index("-o") + 1] = ""
        return lambda path: self.detent(*[str(path) if word == "" else word for word in words[1:]], "--no-bench")

    def peers(self) -> None:
        for method in METHODS:
            self.add(f"quantize_static {method}", "peer", lambda path, method=method: self.static(path, method))
        self.add("quantize_static uint16", "peer", lambda path: self.static(path, "minmax", QuantType.QUInt16))
        self.add("quantize_dynamic", "peer", lambda path: quantize_dynamic(self.prepared, path, weight_type=QuantType.QInt8))

    def static(self, path: Path, method: str, activations: QuantType = QuantType.QUInt8, **more: Any) -> None:
        quantize_static(
            self.prepared,
            path,
            peers.Samples(str(self.data)),
            **{"per_channel": True, **more},
            activation_type=activations,
            weight_type=QuantType.QInt8,
            calibrate_method=METHODS[method],
            extra_options={"UseQDQContribOps": activations == QuantType.QUInt16},
        )

    def optuna(self) -> None:
        """The front of its trials joins the rows as peers."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        products = [n.name for n in onnx.load(self.prepared).graph.node if n.op_type in ("Conv", "MatMul", "Gemm") and n.name]
        before = self.judge.inferences

        def objective(trial: Any) -> tuple[float, float, float]:
            path = self.folder / f"trial-{trial.number}.onnx"
            activations = trial.suggest_categorical("activations", ["QUInt8", "QUInt16"])
            method = trial.suggest_categorical("method", ["minmax", "percentile"])
            excluded = [name for name in products if trial.suggest_categorical(name, [False, True])]
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    self.static(path, method, QuantType[activations], nodes_to_exclude=excluded)
                error = self.judge.error(path)
            except Exception as failed:
                raise optuna.TrialPruned(str(failed)) from failed
            return error, self.timed([path])[1], path.stat().st_size

        study = optuna.create_study(directions=["minimize"] * 3, sampler=optuna.samplers.NSGAIISampler(seed=1))
        study.optimize(objective, n_trials=self.a.trials)
        done = len(study.trials)
        self.trial_inferences = done * len(list(self.data.glob("*.npz"))) + self.judge.inferences - before
        for trial in study.best_trials:
            path = self.folder / f"trial-{trial.number}.onnx"
            self.rows.append((Figures(f"trial {trial.number}", "peer", trial.values[0]), path))

    def timed(self, paths: list[Path]) -> list[float]:
        """Processor seconds of a sample: of the float model, then of each, by their ratios in turns."""
        words = ["--threads", self.a.threads, "--seconds", self.a.seconds, "--samples", 4, "--no-memory", "--json"]
        told = self.detent("bench", self.model, *paths, "--calibration-data", self.data, *words)
        models = json.loads(told["stdout"])["models"]
        return [models[0]["cpu_seconds"] * model["cpu_ratio"] for model in models]

    def measure(self) -> list[Figures]:
        for at in range(0, len(self.rows), 6):  # as many as are worth timing together
            part = self.rows[at : at + 6]
            for (figures, path), seconds in zip(part, self.timed([path for _, path in part])[1:], strict=True):
                figures.seconds, figures.bytes = seconds, path.stat().st_size
        return [figures for figures, _ in self.rows]


def covers(point: Figures, other: Figures, error: float = SLACK, seconds: float = SLACK, size: float = SLACK) -> bool:
    return point.error <= error * other.error and point.seconds <= seconds * other.seconds and point.bytes <= size * other.bytes


def verdict(rows: list[Figures]) -> dict[str, Any]:
    front = [row for row in rows if row.kind in ("front", "float")]
    singles = [row for row in rows if row.kind in ("detent", "peer") or (row.kind == "front" and not row.mixed)]
    mixed = [row for row in front if row.mixed]
    beaten = {
        single.name
        for single in singles
        for point in mixed
        if covers(point, single, CLEARLY) or covers(point, single, seconds=CLEARLY) or covers(point, single, size=CLEARLY)
    }
    outside = [row.name for row in rows if row.kind in ("detent", "peer") and not any(covers(p, row) for p in front)]
    return {"points": len(front), "outside": outside, "clearly_beaten": len(beaten), "singles": len(singles)}


def show(comparison: Comparison, rows: list[Figures]) -> dict[str, Any]:
    found = verdict(rows)
    print(f"\n{comparison.name}\n| model | kind | ms | KiB | SQNR, dB |\n|---|---|--:|--:|--:|")
    for row in sorted(rows, key=lambda row: row.seconds):
        quality = f"{-10 * np.log10(row.error):.1f}" if row.error > 0 else "exact"
        print(f"| {row.name} | {row.kind} | {1e3 * row.seconds:.3g} | {row.bytes / 1024:.0f} | {quality} |")
    print(
        f"outside the front: {', '.join(found['outside']) or 'none'}; single formats and presets that a mixture clearly beats: "
        f"{found['clearly_beaten']} of {found['singles']}"
    )
    for note in comparison.notes:
        print(f"note: {note}")
    trials = getattr(comparison, "trial_inferences", None)
    told = {"model": comparison.name, "rows": [asdict(row) for row in rows], **found, "inferences": comparison.inferences}
    if trials is not None:
        print(f"inferences of the model: {comparison.inferences} of the search, {trials} of {comparison.a.trials} trials")
        told["trial_inferences"] = trials
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="COLUMN | MODEL:DATA")
    parser.add_argument("--detent", default=HERE + "/../build/detent")
    parser.add_argument("--runtime", default=HERE + "/../build/libonnxruntime.so")
    parser.add_argument("--models-folder", dest="fetched", default=HERE + "/../build/models")
    parser.add_argument("--points", type=int, default=8)
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory-limit-mb", type=int, default=8000)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    logging.disable(logging.WARNING)
    specs, a.models = a.models or list(COLUMNS), a.fetched
    told = []
    with tempfile.TemporaryDirectory() as scratch:
        for spec in specs:
            try:
                comparison = Comparison(a, spec, (a.work or Path(scratch)) / spec.replace("/", "_").replace(":", "_"))
                comparison.search()
                comparison.peers()
                if a.trials > 0:
                    comparison.optuna()
                told.append(show(comparison, comparison.measure()))
            except ToolFailed as failed:
                print(f"\n{spec}: {failed}")
    print("\n| model | points of the front | outside the front | clearly beaten by a mixture |\n|---|---|---|---|")
    for one in told:
        outside = ", ".join(one["outside"]) or "none"
        print(f"| {one['model']} | {one['points']} | {outside} | {one['clearly_beaten']} of {one['singles']} |")
    if a.json:
        a.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
