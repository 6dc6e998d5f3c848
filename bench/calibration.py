#!/usr/bin/env python3
"""What calibration costs: detent with every method beside plain inference, onnxruntime.quantization and AMD Quark, interleaved.

  calibration.py [MODEL ...] [--samples 8] [--rounds 3] [--quark-python PYTHON] [--json FILE]
  calibration.py --method-memory [MODEL ...] [--samples 8 512] [--rounds 1]

MODEL as in run.py. What each column means: README.md. Exit status 1 when a rule is broken."""

# Only the standard library here and in measure.py, which says why.
import argparse
import json
import os
import shutil
import sys
import tempfile
from typing import Any

import method_memory
from measure import (
    HERE,
    Run,
    ToolFailed,
    environment,
    make_samples,
    measure,
    median,
    memory_limit,
    missing,
    peer_stage,
    prepare,
    ratio,
)
from turns import Limits, Tool, Turns, plain_tools, take_turns

METHODS = ["minmax", "percentile", "layerwise-percentile", "mse", "entropy"]
ORT_METHODS = ["minmax", "percentile", "entropy"]
MODELS = ["resnet50", "bert", "rrdb_128"]
TIME_RULE = 1.25
COLUMNS = ["wall_s", "cpu_s", "stage_s", "peak_mb", "time_ratio", "peak_ratio"]
HEADER = "| tool | method | wall s | CPU s | stage s | peak MB | time ÷ plain | peak ÷ plain |\n|---|---|---|---|---|---|---|---|"


def detent_stage(stdout: str) -> Run:
    """The stage Calibration: of calibrate, all samples; of quantize with statistics given, from these to the method's ranges."""
    return {"stage_s": next(s["seconds"] for s in json.loads(stdout)["stages"] if s["name"] == "Calibration")}


def detent_tools(a: argparse.Namespace, model: str, data: str, work: str) -> list[Tool]:
    """The samples run once for all methods; then each method takes its ranges from the statistics."""
    stats, out = work + "/statistics", work + "/detent.onnx"
    shared = ["--json", "--threads", str(a.threads), *a.detent_options.split()]
    calibrate = [a.detent, "calibrate", model, "--preset", "plain", "-o", stats, "--calibration-data", data + "/npz", *shared]
    tools = [Tool("detent", "calibrate", calibrate, detent_stage, stats)]
    for method in a.methods:
        command = [a.detent, "quantize", "--no-bench", model, "--preset", "plain", "-o", out]
        command += ["--statistics", stats, "--method", method, *shared]
        tools.append(Tool("detent", method, command, detent_stage, out))
    return tools


def peer_tools(a: argparse.Namespace, model: str, data: str, work: str) -> list[Tool]:
    """Each method of a peer is a run of its own, from file to file."""
    out = work + "/peer.onnx"
    read = lambda stdout: {"stage_s": peer_stage(stdout)}
    tail = lambda method: [model, out, data + "/npz", method, str(a.threads)]
    ort = [sys.executable, HERE + "/ort_quantize.py"]
    tools = [Tool("quantize_static", method, [*ort, *tail(method)], read, out) for method in a.ort_methods]
    if a.quark_python:
        quark = [a.quark_python, HERE + "/quark_quantize.py"]
        tools += [Tool("Quark", method, [*quark, *tail(method)], read, out) for method in a.quark_methods]
    return tools


def together(groups: list[list[Run]]) -> list[Run]:
    """For each round the sum of several runs: times add up, the peak is the highest of them."""
    add = lambda runs, key: sum(run[key] for run in runs)
    return [
        {"wall_s": add(runs, "wall_s"), "cpu_s": add(runs, "cpu_s"), "peak_mb": max(run["peak_mb"] for run in runs)}
        for runs in zip(*groups)
    ]


def detent_ranges(turns: Turns, methods: list[str]) -> list[Run]:
    """For each round: calibrate as a whole process, and of each quantize only the ranges, for the rest is not calibration."""
    per_method = [turns.runs[f"detent {method}"] for method in methods]
    return [
        {
            "wall_s": run["wall_s"] + sum(one["stage_s"] for one in ranges),
            "peak_mb": max(one["peak_mb"] for one in (run, *ranges)),
        }
        for run, ranges in zip(turns.runs["detent calibrate"], zip(*per_method))
    ]


def add_totals(turns: Turns, tools: list[Tool], methods: list[str]) -> list[tuple[str, str, list[Run]]]:
    """(tool, method, runs) of each single tool and, after the last one of a name, of all its methods."""
    entries = []
    names = dict.fromkeys(tool.name for tool in tools)
    for name in names:
        own = [tool for tool in tools if tool.name == name]
        entries += [(name, tool.method, turns.runs.get(tool.key, [])) for tool in own]
        if name == "inference" or any(tool.key in turns.failed for tool in own):
            continue
        if name == "detent":
            entries.append((name, "calibrate + all ranges", detent_ranges(turns, methods)))
        entries.append((name, "all of these", together([turns.runs[tool.key] for tool in own])))
    return entries


def summarize(turns: Turns, tools: list[Tool], methods: list[str]) -> list[dict[str, Any]]:
    plain = turns.runs["inference default"]
    rows = []
    for name, method, runs in add_totals(turns, tools, methods):
        row: dict[str, Any] = {"tool": name, "method": method}
        if runs:
            row.update({key: median(runs, key) for key in COLUMNS[:4] if key in runs[0]})
            row.update(time_ratio=ratio(runs, "wall_s", plain), peak_ratio=ratio(runs, "peak_mb", plain))
        else:
            error = turns.failed[f"{name} {method}"]
            row.update(failed=error.reason, peak_mb=error.run["peak_mb"])
        rows.append(row)
    return rows


def rules(turns: Turns, rows: list[dict[str, Any]]) -> dict[str, bool]:
    """What is promised, with the figures, and whether it holds."""
    own = [row for row in rows if row["tool"] == "detent"]
    if any("failed" in row for row in own):
        return {"detent failed": False}
    time = next(row["time_ratio"] for row in own if row["method"] == "calibrate + all ranges")
    peak = max(row["peak_mb"] for row in own)
    default, limit = median(turns.runs["inference default"], "peak_mb"), memory_limit(turns.runs["inference tuned"])
    return {
        f"detent calibrate + all ranges {time:.2f} x plain inference, at most {TIME_RULE}": time <= TIME_RULE,
        f"peak of any detent run {peak:.0f} MB, at most default's {default:.0f}": peak <= default,
        f"and at most 1.05 x tuned + 48 = {limit:.0f}": peak <= limit,
    }


def show(row: dict[str, Any]) -> str:
    digits = {"peak_mb": 0}
    cells = [f"{row[key]:.{digits.get(key, 2)}f}" if key in row else "" for key in COLUMNS]
    if "failed" in row:
        cells[0] = "failed: " + row["failed"].replace("|", "/")
    return f"| {row['tool']} | {row['method']} | {' | '.join(cells)} |"


def compare(a: argparse.Namespace, env: dict[str, str], work: str, limits: Limits) -> list[dict[str, Any]]:
    """Prints a table for each model and number of samples; one record for each."""
    records = []
    for spec in a.models:
        name, model, options = prepare(spec, work)
        for samples in a.samples:
            data = work + "/data"
            make_samples(model, data, samples, options)
            tools = plain_tools(a.bench, model, data, samples, a.threads) + detent_tools(a, model, data, work)
            tools += peer_tools(a, model, data, work)
            turns = take_turns(tools, a.rounds, env, work + "/scratch", limits)
            rows = summarize(turns, tools, a.methods)
            verdicts = rules(turns, rows)
            print(f"\n{name}, {samples} samples, {a.threads} threads, {a.rounds} rounds\n\n{HEADER}")
            print("\n".join(show(row) for row in rows))
            print("\nrules: " + "; ".join(f"{rule}: {'pass' if good else 'FAIL'}" for rule, good in verdicts.items()), flush=True)
            good = all(verdicts.values())
            records.append({"model": name, "samples": samples, **turns.record(), "rows": rows, "rules": verdicts, "good": good})
    return records


def find_quark(python: str | None, env: dict[str, str]) -> str | None:
    """The interpreter when it has Quark. Importing it here also keeps its first-time compilation out of the figures."""
    if not python:
        print("AMD Quark: no --quark-python given, its rows are left out")
        return None
    try:
        out = measure([python, HERE + "/quark_quantize.py", "--version"], env)["stdout"]
    except (ToolFailed, OSError) as error:
        print(f"AMD Quark: its rows are left out, {python} cannot import it:\n{error}")
        return None
    print(f"AMD Quark {out.split()[-1]}")
    return os.path.abspath(shutil.which(python) or python)


def available_mb() -> float:
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) / 1024


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*", help=f"default: {' '.join(MODELS)}; with --method-memory also conv3")
    p.add_argument("--method-memory", action="store_true", help="peak memory of each method of detent, with few and many samples")
    p.add_argument("--samples", type=int, nargs="+", help="default: 8; with --method-memory 8 512")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--methods", nargs="+", default=METHODS, help="calibration methods of detent")
    p.add_argument("--ort-methods", nargs="*", default=ORT_METHODS, help="calibration methods of quantize_static; empty: none")
    p.add_argument("--quark-methods", nargs="*", default=METHODS, help="calibration methods of AMD Quark")
    p.add_argument("--quark-python", help="interpreter that has amd-quark, torch and onnxruntime; without it Quark is left out")
    p.add_argument("--detent", default="build/detent")
    p.add_argument("--detent-options", default="", help="further options of detent calibrate and quantize, in one string")
    p.add_argument("--bench", default="build/bench_inference")
    p.add_argument("--runtime", help="ONNX Runtime library for detent and bench_inference")
    p.add_argument("--memory-limit-mb", type=float, help="limit of a child's own memory (default: 60 %% of what is available)")
    p.add_argument("--time-limit", type=float, default=3600, help="seconds for one run of one tool")
    p.add_argument("--json", help="write every single run to this file")
    p.add_argument("--work", help="folder for models, samples and outputs, kept (default: a temporary one)")
    a = p.parse_args()
    a.models = a.models or (method_memory.MODELS if a.method_memory else MODELS)
    a.samples = a.samples or (method_memory.SAMPLES if a.method_memory else [8])
    for path in missing(a.models, a.bench, a.detent):
        p.error(f"{path} does not exist")
    a.bench, a.detent = os.path.abspath(a.bench), os.path.abspath(a.detent)
    return a


def main() -> int:
    a = parse()
    env = environment(a.runtime)
    work = os.path.abspath(a.work or tempfile.mkdtemp(prefix="detent-bench-"))
    os.makedirs(work, exist_ok=True)
    limits = Limits(a.memory_limit_mb or 0.6 * available_mb(), a.time_limit)
    try:
        if a.method_memory:
            records = method_memory.run(a, env, work, limits)
        else:
            a.quark_python = find_quark(a.quark_python, env)
            records = compare(a, env, work, limits)
        if a.json:
            with open(a.json, "w") as f:
                json.dump(records, f, indent=1)
    finally:
        if not a.work:
            shutil.rmtree(work, ignore_errors=True)
    return 0 if all(record["good"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
