#!/usr/bin/env python3
"""What fine-tuning costs and what it gains: detent beside AMD Quark on the same samples, threads and iterations, interleaved.

  finetune.py [MODEL ...] [--samples 32] [--num-iterations 100] [--rounds 1] [--device cuda:0] [--quark-python PYTHON] [--json FILE]

MODEL as in run.py; default resnet18. What each column means: README.md. Exit status 1 when a bound is missed."""

# Only the standard library here and in measure.py, which says why.
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from typing import Any

from calibration import available_mb, find_quark
from measure import HERE, Run, ToolFailed, environment, make_samples, median, missing, peer_stage, prepare
from turns import Limits, Tool, Turns, one_run

DETENT = {
    "nearest": [],
    "adaround": ["--finetune", "adaround"],
    "adaround gram": ["--finetune", "adaround", "--set", "finetune-form=gram"],
    "adaround streamed": ["--finetune", "adaround", "--set", "finetune-form=streamed"],
    "adaquant": ["--finetune", "adaquant"],
    "gptq": ["--finetune", "gptq"],
}
QUARK = ["adaround 1", "adaround 2", "adaquant 1"]  # algorithm and memory level
BASE = "Quark adaround 1"  # whose errors detent's are compared with
WALL, WALL_GPTQ, PEAK, DISK, LAYERS = 1 / 15, 1 / 100, 1 / 4, 1 / 10, 0.9
ON_DEVICE = 1 / 10  # of the peer's tuning time, on the same GPU and for the same layers
HEADER = (
    "| tool | setting | wall s | CPU s | tuning s | peak MB | written MB | temp peak MB | mean MSE | ÷ nearest | layers ≤ peer |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


class Disk:
    """The largest sum of sizes of the files below a folder, looked at twenty times a second."""

    def __init__(self, folder: str):
        self.folder, self.peak, self.stop = folder, 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self) -> None:
        while not self.stop.wait(0.05):
            self.peak = max(self.peak, self.size())

    def size(self) -> int:
        total = 0
        for folder, _, files in os.walk(self.folder):
            for name in files:
                try:
                    total += os.stat(os.path.join(folder, name)).st_blocks * 512
                except OSError:
                    pass  # gone in between
        return total

    def __enter__(self) -> "Disk":
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop.set()
        self.thread.join()


def tuning_stage(stdout: str) -> Run:
    stages = {stage["name"]: stage["seconds"] for stage in json.loads(stdout)["stages"]}
    return {"stage_s": stages.get("Fast Finetune", 0)}


def tools_of(a: argparse.Namespace, model: str, data: str, work: str) -> list[Tool]:
    threads, iterations, batch = str(a.threads), str(a.num_iterations), str(a.batch_size)
    tools = []
    for name in a.detent_settings:
        out = f"{work}/detent-{name.replace(' ', '-')}.onnx"
        command = [
            a.detent,
            "quantize",
            "--no-bench",
            model,
            "--preset",
            "plain",
            "-o",
            out,
            "--calibration-data",
            data + "/npz",
            "--json",
            "--threads",
            threads,
        ]
        command += ["--weight-type", a.weight_type, *DETENT[name]]
        if name != "nearest":
            command += ["--set", f"num-iterations={iterations}", "--set", f"finetune-batch-size={batch}"]
            if a.device != "cpu":
                command += ["--device", a.device]
        tools.append(Tool("detent", name, command, tuning_stage, out))
    for name in a.quark_settings if a.quark_python else []:
        algorithm, level = name.split()
        out = f"{work}/quark-{algorithm}-{level}.onnx"
        child = [a.quark_python, HERE + "/quark_finetune.py", model, out, data + "/npz", threads]
        command = [*child, algorithm, iterations, batch, level, a.weight_type, a.device]
        tools.append(Tool("Quark", name, command, lambda stdout: {"stage_s": peer_stage(stdout)}, out))
    return tools


def take_turns(a: argparse.Namespace, tools: list[Tool], env: dict[str, str], scratch: str, limits: Limits) -> Turns:
    turns = Turns()
    for number in range(1, a.rounds + 1):
        for tool in tools:
            if tool.key in turns.failed:
                continue
            try:
                with Disk(scratch) as disk:
                    run = one_run(tool, env, scratch, limits)
                turns.runs.setdefault(tool.key, []).append({**run, "temp_mb": disk.peak / 2**20})
                news = f"{run['wall_s']:.1f} s, {run['peak_mb']:.0f} MB"
            except ToolFailed as error:
                turns.fail(tool, error)
                news = "failed: " + error.reason
            print(f"  round {number}/{a.rounds} {tool.key}: {news}", file=sys.stderr, flush=True)
    shutil.rmtree(scratch, ignore_errors=True)
    return turns


def judge(model: str, held_back: str, tools: list[Tool], env: dict[str, str]) -> dict[str, Any]:
    """Errors by tool and layer, from a child of its own: this process stays small."""
    outputs = {tool.key: tool.output for tool in tools if tool.output and os.path.exists(tool.output)}
    command = [sys.executable, HERE + "/finetune_judge.py", model, held_back + "/npz", *outputs.values()]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env).stdout)
    return {key: found[path] for key, path in outputs.items()}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def quality(errors: dict[str, Any], key: str) -> Run:
    """Mean over layers of the error, of its ratio to nearest rounding's, and in how many layers it is at most the peer's."""
    own = {name: row["own"] for name, row in errors[key].items()}
    row: Run = {"mse": mean(list(own.values()))}
    for column, other in (("ratio", "detent nearest"), ("layers", BASE)):
        shared = [name for name in own if name in errors.get(other, {})]
        if shared and column == "ratio":
            row[column] = mean([own[name] / errors[other][name]["own"] for name in shared])
        elif shared:
            row[column] = mean([float(own[name] <= errors[other][name]["own"]) for name in shared])
    return row


def summarize(turns: Turns, tools: list[Tool], errors: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for tool in tools:
        row: dict[str, Any] = {"tool": tool.name, "method": tool.method, "key": tool.key}
        if tool.key in turns.failed:
            row["failed"] = turns.failed[tool.key].reason
        else:
            runs = turns.runs[tool.key]
            row.update({k: median(runs, k) for k in ("wall_s", "cpu_s", "stage_s", "peak_mb", "written_mb", "temp_mb")})
            row.update(quality(errors, tool.key))
        rows.append(row)
    return rows


def bounds(rows: list[dict[str, Any]], device: str) -> dict[str, bool]:
    """What is promised against each memory level of the peer's AdaRound, with the figures."""
    good = {row["key"]: row for row in rows if "failed" not in row}
    found = {}
    if device != "cpu" and BASE in good:
        for key in (key for key in good if key.startswith("detent adaround")):
            ratio = good[key]["stage_s"] / max(good[BASE]["stage_s"], 1e-9)
            found[f"{key} ÷ {BASE} on {device}, tuning of a layer: 1/{1 / max(ratio, 1e-9):.1f}, bound 1/10"] = ratio <= ON_DEVICE
    for peer_key, peer in good.items():
        if not peer_key.startswith("Quark adaround"):
            continue
        for key, wall in (("detent adaround", WALL), ("detent gptq", WALL_GPTQ)):
            if key not in good:
                continue
            own = good[key]
            for column, bound in (("wall_s", wall), ("cpu_s", wall), ("peak_mb", PEAK), ("written_mb", DISK)):
                ratio = own[column] / max(peer[column], 1e-9)
                found[f"{key} ÷ {peer_key}, {column}: 1/{1 / max(ratio, 1e-9):.1f}, bound 1/{1 / bound:.0f}"] = ratio <= bound
    for key in ("detent adaround", "detent gptq"):
        if key in good and "layers" in good[key] and BASE in good:
            own, peer = good[key], good[BASE]
            found[f"{key}: at most the peer's error in {own['layers']:.0%} of layers, bound {LAYERS:.0%}"] = own["layers"] >= LAYERS
            found[f"{key}: mean error {own['mse']:.3g}, the peer's {peer['mse']:.3g}"] = own["mse"] <= peer["mse"]
    return found


def show(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"| {row['tool']} | {row['method']} | failed: {row['failed'].replace('|', '/')} |" + " |" * 8
    formats = {"wall_s": ".1f", "cpu_s": ".1f", "stage_s": ".1f", "peak_mb": ".0f", "written_mb": ".0f", "temp_mb": ".0f"}
    formats |= {"mse": ".3g", "ratio": ".2f", "layers": ".0%"}
    cells = [format(row[key], f) if key in row else "" for key, f in formats.items()]
    return f"| {row['tool']} | {row['method']} | {' | '.join(cells)} |"


def compare(a: argparse.Namespace, env: dict[str, str], work: str, limits: Limits) -> list[dict[str, Any]]:
    records = []
    for spec in a.models:
        name, model, options = prepare(spec, work)
        data, held_back = work + "/data", work + "/held-back"
        make_samples(model, data, a.samples, options)
        make_samples(model, held_back, a.held_back, [*options, "--seed", "1"])
        tools = tools_of(a, model, data, work)
        turns = take_turns(a, tools, env, work + "/scratch", limits)
        errors = judge(model, held_back, tools, env)
        rows = summarize(turns, tools, errors)
        verdicts = bounds(rows, a.device)
        title = f"{name}, {a.samples} samples, {a.num_iterations} iterations, batch {a.batch_size}, {a.threads} threads"
        print(f"\n{title}\n\n{HEADER}")
        print("\n".join(show(row) for row in rows))
        print("\n" + "\n".join(f"{'met   ' if good else 'MISSED'} {text}" for text, good in verdicts.items()), flush=True)
        records.append({"model": name, "rows": rows, "errors": errors, "bounds": verdicts, **turns.record()})
        if a.json:
            with open(a.json, "w") as f:
                json.dump(records, f, indent=1)
    return records


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*", default=["resnet18"])
    p.add_argument("--samples", type=int, default=32)
    p.add_argument("--held-back", type=int, default=8, help="samples for the errors, which no tool sees")
    p.add_argument("--num-iterations", type=int, default=100)
    p.add_argument("--batch-size", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--weight-type", choices=["int8", "uint8"], default="int8")
    p.add_argument("--detent-settings", nargs="+", choices=list(DETENT), default=list(DETENT), metavar="SETTING")
    p.add_argument("--quark-settings", nargs="*", default=QUARK, metavar="'ALGORITHM LEVEL'")
    p.add_argument("--quark-python", help="interpreter that has amd-quark, torch and onnxruntime; without it Quark is left out")
    p.add_argument("--device", default="cpu", help="where both tools tune: cpu or cuda:0")
    p.add_argument("--detent", default="build/detent")
    p.add_argument("--runtime", help="ONNX Runtime library for detent")
    p.add_argument("--memory-limit-mb", type=float, help="limit of a child's own memory (default: 60 %% of what is available)")
    p.add_argument("--time-limit", type=float, default=7200, help="seconds for one run of one tool")
    p.add_argument("--json", help="write every single run and every layer's error to this file")
    p.add_argument("--work", help="folder for models, samples and outputs, kept (default: a temporary one)")
    a = p.parse_args()
    for path in missing(a.models, a.detent):
        p.error(f"{path} does not exist")
    a.detent = os.path.abspath(a.detent)
    return a


def main() -> int:
    a = parse()
    env = {**environment(a.runtime), "OMP_NUM_THREADS": str(a.threads)}
    work = os.path.abspath(a.work or tempfile.mkdtemp(prefix="detent-bench-"))
    os.makedirs(work, exist_ok=True)
    try:
        a.quark_python = find_quark(a.quark_python, env)
        records = compare(a, env, work, Limits(a.memory_limit_mb or 0.6 * available_mb(), a.time_limit))
    finally:
        if not a.work:
            shutil.rmtree(work, ignore_errors=True)
    return 0 if all(all(record["bounds"].values()) for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
