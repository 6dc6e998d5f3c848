"""calibration.py --method-memory: the peak of every method beside plain inference, with few and with many samples."""

import argparse
from typing import Any

from measure import make_samples, median, memory_limit, memory_rules, prepare
from turns import Limits, Tool, Turns, plain_tools, take_turns

MODELS = ["resnet50", "bert", "rrdb_128", "conv3"]
SAMPLES = [8, 512]
HEADER = "| model | samples | tool | wall s | peak MB | ÷ default | limit MB | rules |\n|---|---|---|---|---|---|---|---|"


def method_tools(a: argparse.Namespace, model: str, data: str, work: str) -> list[Tool]:
    """A whole quantize for each method, and calibrate, which gathers for all methods and so needs the most."""
    given = ["--calibration-data", data + "/npz", "--threads", str(a.threads), *a.detent_options.split()]
    out, stats = work + "/detent.onnx", work + "/statistics"
    tools = [Tool("detent", "calibrate", [a.detent, "calibrate", model, "--preset", "plain", "-o", stats, *given], output=stats)]
    for method in a.methods:
        command = [a.detent, "quantize", "--no-bench", model, "--preset", "plain", "-o", out, *given, "--method", method]
        tools.append(Tool("detent", f"quantize {method}", command, output=out))
    return tools


def judge(tools: list[Tool], turns: Turns) -> list[dict[str, Any]]:
    default, tuned = (turns.runs[f"inference {kind}"] for kind in ("default", "tuned"))
    rows = []
    for tool in tools:
        row: dict[str, Any] = {"tool": tool.key}
        if error := turns.failed.get(tool.key):
            row["rules"] = {error.reason: False}
        else:
            runs = turns.runs[tool.key]
            row.update(wall_s=median(runs, "wall_s"), peak_mb=median(runs, "peak_mb"))
            row["peak_to_default"] = row["peak_mb"] / median(default, "peak_mb")
            if tool.name == "detent":
                row.update(limit_mb=memory_limit(tuned), rules=memory_rules(runs, default, tuned))
        rows.append(row)
    return rows


def show(name: str, samples: int, row: dict[str, Any]) -> str:
    number = lambda key, digits: f"{row[key]:.{digits}f}" if key in row else ""
    broken = [rule for rule, good in row.get("rules", {}).items() if not good]
    verdict = "" if "rules" not in row else "FAIL: " + ", ".join(broken) if broken else "pass"
    return (
        f"| {name} | {samples} | {row['tool']} | {number('wall_s', 2)} | {number('peak_mb', 1)} | {number('peak_to_default', 2)} | "
        f"{number('limit_mb', 1)} | {verdict} |"
    )


def run(a: argparse.Namespace, env: dict[str, str], work: str, limits: Limits) -> list[dict[str, Any]]:
    """Prints the table as it grows; one record for each model and number of samples."""
    records = []
    print(HEADER, flush=True)
    for spec in a.models:
        name, model, options = prepare(spec, work)
        for samples in a.samples:
            make_samples(model, work + "/data", samples, options)
            tools = plain_tools(a.bench, model, work + "/data", samples, a.threads) + method_tools(a, model, work + "/data", work)
            turns = take_turns(tools, a.rounds, env, work + "/scratch", limits)
            rows = judge(tools, turns)
            for row in rows:
                print(show(name, samples, row), flush=True)
            good = all(ok for row in rows for ok in row.get("rules", {}).values())
            records.append({"model": name, "samples": samples, **turns.record(), "rows": rows, "good": good})
    return records
