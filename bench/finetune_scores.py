#!/usr/bin/env python3
"""How well trained models do their tasks after fine-tuning: nearest rounding beside GPTQ and AdaRound.

  finetune_scores.py [COLUMN ...] [--weight-types int8 int4] [--num-iterations 1000] [--json FILE]

Columns, models, samples and scoring are those of scores.py: uint8 activations, weights per channel, Q/DQ computed in float. Ranges
are by --method, the same in all rows, and fine-tuning sees the calibration samples alone. In brackets: how much of nearest
rounding's loss against float a row gets back; it says nothing where nearest loses less than the noise, about a point."""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import scores
from measure import ToolFailed, environment

ROWS: dict[str, list[str]] = {
    "nearest": [],
    "gptq": ["--finetune", "gptq"],
    "gptq, bias": ["--finetune", "gptq", "--set", "update-bias"],
    "adaround": ["--finetune", "adaround"],
    "adaround, bias": ["--finetune", "adaround", "--set", "update-bias"],
    "adaround, streamed": ["--finetune", "adaround", "--set", "finetune-form=streamed"],
}


def quantize(job: scores.Job, a: argparse.Namespace, weight_type: str, options: list[str]) -> None:
    tuning = [*options, "--set", f"num-iterations={a.num_iterations}"] if options else []
    formats = ["--weight-type", weight_type, "--method", a.method]
    job.run_detent("quantize", "--no-bench", "-o", job.out, "--calibration-data", job.folder / "calibration", *formats, *tuning)


def score_column(job: scores.Job, a: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"row": "float", "score": job.score("model.onnx", "float.npy")}]
    for weight_type in a.weight_types:
        for name in a.rows:
            job.out.unlink(missing_ok=True)
            row: dict[str, Any] = {"row": f"{weight_type} {name}", "weight_type": weight_type, "name": name}
            start = time.monotonic()
            try:
                quantize(job, a, weight_type, ROWS[name])
                row["seconds"] = time.monotonic() - start
                row["score"] = job.score(job.out.name)
            except ToolFailed as error:
                row["failed"] = error.reason
            rows.append(row)
            print(f"  {job.column.title}: {row}", file=sys.stderr, flush=True)
    return rows


def add_recovered(rows: list[dict[str, Any]]) -> None:
    top = rows[0]["score"]
    nearest = {row["weight_type"]: row.get("score") for row in rows[1:] if row["name"] == "nearest"}
    for row in rows[1:]:
        base = nearest.get(row["weight_type"])
        if base is not None and "score" in row and row["name"] != "nearest" and top > base:
            row["recovered"] = (row["score"] - base) / (top - base)


def cell(row: dict[str, Any]) -> str:
    if "score" not in row:
        return "failed"
    recovered = f" ({row['recovered']:+.0%})" if "recovered" in row else ""
    return f"{row['score']:.3f}{recovered}"


def show(columns: dict[str, list[dict[str, Any]]]) -> str:
    titles = [scores.COLUMNS[name].title for name in columns]
    lines = [f"| weights, rounding | {' | '.join(titles)} |", "|---|" + "---|" * len(titles)]
    for rows in zip(*columns.values()):
        lines.append(f"| {rows[0]['row']} | {' | '.join(map(cell, rows))} |")
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("columns", nargs="*", metavar="COLUMN", help="default: all whose models are there")
    p.add_argument("--weight-types", nargs="+", default=["int8", "int4"])
    p.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    p.add_argument("--method", default="mse", help="calibration method")
    p.add_argument("--num-iterations", type=int, default=1000)
    p.add_argument("--models", type=Path, default=Path("build/models"), help="where scripts/fetch_models.py put them")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--detent", default="build/detent")
    p.add_argument("--runtime", help="ONNX Runtime library for detent")
    p.add_argument("--memory-limit-mb", type=float)
    p.add_argument("--time-limit", type=float, default=3600, help="seconds for one run")
    p.add_argument("--json", help="write the scores to this file")
    a = p.parse_args()
    a.detent, a.models = Path(a.detent).absolute(), a.models.resolve()
    if not a.detent.exists():
        p.error(f"{a.detent} does not exist")
    env, found = environment(a.runtime), {}
    for name in a.columns or scores.available(a.models):
        with tempfile.TemporaryDirectory(prefix="detent-scores-") as folder:
            found[name] = score_column(scores.Job(scores.COLUMNS[name], a, env, Path(folder)), a)
        add_recovered(found[name])
        if a.json:
            Path(a.json).write_text(json.dumps(found, indent=1))
    print("\n" + show(found))


if __name__ == "__main__":
    main()
