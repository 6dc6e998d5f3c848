#!/usr/bin/env python3
"""Peak memory and time of detent beside plain ONNX Runtime inference and onnxruntime.quantization, interleaved.

  run.py [MODEL ...] [--samples 8 256] [--threads 1 2] [--rounds 3] [--json FILE] [--quick]

MODEL is resnet50, resnet50_bn, rrdb, bert (made by models.py) or a path, with shapes for dynamic inputs where the default
does not suit: net.onnx,x:1x3x640x640. What each column means: README.md. Exit status 1 when a rule is broken."""

# Only the standard library here and in measure.py, which says why.
import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile

from measure import (
    HERE,
    environment,
    inference_cost,
    make_samples,
    measure,
    median,
    memory_limit,
    memory_rules,
    missing,
    peer_stage,
    prepare,
    ratio,
)

QUICK = ["resnet50", "rrdb_small"]


def calibration_seconds(profile):
    """Time between two checkpoints of detent's profile, which is a flat list of items with a step and a time each."""
    at = {}
    with open(profile) as f:
        for item in re.split(r"(?m)^\s*- ", f.read()):
            step = re.search(r"""(?m)^\s*step:\s*["']?(.+?)["']?\s*$""", item)
            secs = re.search(r"(?m)^\s*relative_time_secs:\s*([0-9.eE+-]+)", item)
            if step and secs:
                at.setdefault(step[1], float(secs[1]))
    return at["Calibration End"] - at["Calibration Start"]


def commands(a, model, data, threads, work):
    bench = [a.bench, model, data + "/bin", "--threads", str(threads)]
    tools = {"default": bench, "tuned": bench + ["--tuned"]}
    if os.path.exists(a.detent):
        for method in a.methods:
            tools["detent " + method] = [
                a.detent,
                "quantize",
                "--no-bench",
                "--preset",
                "plain",
                model,
                "-o",
                f"{work}/detent.onnx",
                "--calibration-data",
                data + "/npz",
                "--method",
                method,
                "--threads",
                str(threads),
                "--profile",
                work + "/profile.yaml",
            ] + a.detent_options.split()
    for method in a.peers:
        tools["quantize_static " + method] = [
            sys.executable,
            HERE + "/ort_quantize.py",
            model,
            f"{work}/ort.onnx",
            data + "/npz",
            method,
            str(threads),
        ]
    return tools


def one_case(a, model, data, threads, work, env):
    tools = commands(a, model, data, threads, work)
    runs = {tool: [] for tool in tools}
    outputs = [f"{work}/{name}" for name in ("detent.onnx", "ort.onnx", "profile.yaml")]
    for _ in range(a.rounds):
        for tool, command in tools.items():
            for stale in outputs:  # a run that writes nothing must not pass on the files of the one before
                if os.path.exists(stale):
                    os.remove(stale)
            r = measure(command, env)
            out = r.pop("stdout")
            if tool in ("default", "tuned"):
                r.update(inference_cost(out))
            elif tool.startswith("detent"):
                if not (os.path.exists(outputs[0]) and os.path.exists(outputs[2])):
                    raise RuntimeError(f"{' '.join(command)}: wrote no model or no profile")
                r["stage_s"] = calibration_seconds(work + "/profile.yaml")
            else:
                r["stage_s"] = peer_stage(out)
            runs[tool].append(r)
    return runs


def judge(runs):
    """Medians per tool, and for detent the ratios and rules."""
    default, tuned = runs["default"], runs["tuned"]
    result = {}
    for tool, rows in runs.items():
        row = {key: median(rows, key) for key in ("wall_s", "cpu_s", "peak_mb", "stage_s")}
        row["peak_to_default"] = row["peak_mb"] / median(default, "peak_mb")
        if tool.startswith("detent"):
            row["time_to_default"], row["time_to_tuned"] = ratio(rows, "stage_s", default), ratio(rows, "stage_s", tuned)
            row["limit_mb"] = memory_limit(tuned)
            row["rules"] = {
                **memory_rules(rows, default, tuned),
                "time <= 1.12 default": row["time_to_default"] <= 1.12,
                "time <= 1.12 tuned": row["time_to_tuned"] <= 1.12,
            }
        result[tool] = row
    return result


def print_case(name, samples, threads, result):
    show = lambda row, key: f"{row[key]:.2f}" if key in row else ""
    for tool, row in result.items():
        broken = [rule for rule, good in row.get("rules", {}).items() if not good]
        verdict = "" if "rules" not in row else "FAIL: " + ", ".join(broken) if broken else "pass"
        print(
            f"| {name} | {samples} | {threads} | {tool} | {row['wall_s']:.2f} | {row['cpu_s']:.2f} | {show(row, 'stage_s')} | "
            f"{row['peak_mb']:.0f} | {row['peak_to_default']:.2f} | {show(row, 'limit_mb')} | {show(row, 'time_to_default')} | "
            f"{show(row, 'time_to_tuned')} | {verdict} |",
            flush=True,
        )


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*")
    p.add_argument("--samples", type=int, nargs="+", default=[8])
    p.add_argument("--threads", type=int, nargs="+", default=[2])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--methods", nargs="*", default=["minmax"], help="calibration methods of detent")
    p.add_argument("--peers", nargs="*", default=["minmax"], help="methods of quantize_static; empty: none")
    p.add_argument("--quick", action="store_true", help="one round; without models, two small ones in under 3 minutes")
    p.add_argument("--detent", default="build/detent")
    p.add_argument("--detent-options", default="", help="further options of detent quantize, in one string")
    p.add_argument("--bench", default="build/bench_inference")
    p.add_argument("--runtime", help="ONNX Runtime library for detent and bench_inference")
    p.add_argument("--json", help="write every single run to this file")
    p.add_argument("--work", help="folder for models, samples and outputs, kept (default: a temporary one)")
    a = p.parse_args()
    a.models = a.models or QUICK
    if a.quick:
        a.rounds = 1
    for path in missing(a.models, a.bench):
        p.error(f"{path} does not exist")
    env = environment(a.runtime)

    work = a.work or tempfile.mkdtemp(prefix="detent-bench-")
    os.makedirs(work, exist_ok=True)
    record, good = [], True
    try:
        if os.path.exists(a.detent):
            versions = [measure([a.detent, "--version"], env) for _ in range(20)]
            if not versions[0]["stdout"].strip():
                sys.exit(f"{a.detent} --version prints nothing")
            starts = [v["wall_s"] * 1000 for v in versions]
            start = statistics.median(starts)
            good = start <= 100
            record.append({"startup_ms": starts})
            print(f"start-up: `detent --version` {start:.0f} ms, median of 20: {'pass' if good else 'FAIL'} (rule: 100 ms)\n")
        else:
            print(f"{a.detent} does not exist: measuring the others only\n")
        print(
            "| model | samples | threads | tool | wall s | CPU s | stage s | peak MB | ÷ default | limit MB | stage ÷ default | "
            "stage ÷ tuned | rules |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
        for spec in a.models:
            name, model, options = prepare(spec, work)
            for samples in a.samples:
                data = f"{work}/data"
                make_samples(model, data, samples, options)
                for threads in a.threads:
                    runs = one_case(a, model, data, threads, work, env)
                    result = judge(runs)
                    print_case(name, samples, threads, result)
                    good &= all(ok for row in result.values() for ok in row.get("rules", {}).values())
                    record.append({"model": name, "samples": samples, "threads": threads, "runs": runs, "result": result})
                    if a.json:
                        with open(a.json, "w") as f:
                            json.dump(record, f, indent=1)
    finally:
        if not a.work:
            shutil.rmtree(work, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
