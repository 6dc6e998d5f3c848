#!/usr/bin/env python3
"""Peak memory on the nine models of AMD's table: detent by four methods and by default, plain inference, quantize_static,
and AMD's figures.

  headline.py [MODEL ...] [--samples 2] [--threads 1] [--json FILE] [--only-default]

MODEL as in headline_models.py; all nine without one. Each peak is that of the largest process of a run, as the operating
system counts it. quantize_static gets 20 GB and half an hour. Exit status 1 when a method takes more than
plain inference. The default preset measures and proves as well, and times both models, and has no such bound."""

# Only the standard library here and in measure.py, which says why.
import argparse
import json
import shutil
import subprocess
import sys
import tempfile

from measure import HERE, Run, ToolFailed, environment, make_samples, measure

METHODS = ("minmax", "percentile", "layerwise-percentile", "mse")
PEER = {"memory_mb": 20_000, "seconds": 1800}
DEFAULT = {"seconds": 3600}


def published(names: list[str]) -> dict[str, list[float]]:
    """AMD's figures of these models, or of all."""
    code = "import json, headline_models as h; print(json.dumps({n: row[1] for n, row in h.HEADLINE.items()}))"
    known = json.loads(subprocess.run([sys.executable, "-c", code], cwd=HERE, check=True, capture_output=True).stdout)
    for name in names:
        if name not in known:
            raise SystemExit(f"there is no model '{name}'; one of: {', '.join(known)}")
    return {name: known[name] for name in names or known}


def save(name: str, path: str) -> None:
    code = "import sys, onnx, headline_models as h; onnx.save(h.HEADLINE[sys.argv[1]][0](), sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, name, path], cwd=HERE, check=True)


def cells(a: argparse.Namespace, name: str, work: str) -> dict[str, Run | str]:
    """Of one model by tool and method: the run, or why there is none."""
    model, data, out, env = work + "/model.onnx", work + "/data", work + "/out.onnx", environment(a.runtime)
    save(name, model)
    make_samples(model, data, a.samples, [])
    threads = ["--threads", str(a.threads)]
    found: dict[str, Run | str] = {"plain inference": measure([a.inference, model, data + "/bin", *threads], env)}
    for method in () if a.only_default else METHODS:
        command = [a.detent, "quantize", model, "-o", out, "--calibration-data", data + "/npz", "--preset", "plain", "--no-bench"]
        found[method] = measure([*command, "--method", method, "--quiet", *threads], env)
    default = [a.detent, "quantize", model, "-o", out, "--calibration-data", data + "/npz", "--quiet", *threads]
    found["default preset"] = within(default, env, DEFAULT)
    if a.only_default:
        return found
    command = [sys.executable, HERE + "/ort_quantize.py", model, out, data + "/npz", "minmax", str(a.threads)]
    found["quantize_static"] = within(command, env, PEER)
    return found


def within(command: list[str], env: dict[str, str], limits: dict[str, float]) -> Run | str:
    try:
        return measure(command, env, **limits)
    except ToolFailed as failed:
        return failed.reason


def megabytes(run: Run | str) -> str:
    return run if isinstance(run, str) else f"{run['peak_mb']:,.0f}"


def line(name: str, found: dict[str, Run | str], amd: list[float]) -> str:
    if METHODS[0] not in found:
        return "| " + " | ".join([name, *map(megabytes, found.values())]) + " |"
    ours = [megabytes(found[column]) for column in (*METHODS, "default preset")]
    theirs = f"{1000 * min(amd):,.0f} to {1000 * max(amd):,.0f}"
    return "| " + " | ".join([name, megabytes(found["plain inference"]), *ours, megabytes(found["quantize_static"]), theirs]) + " |"


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*")
    p.add_argument("--samples", type=int, default=2)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--detent", default="build/detent")
    p.add_argument("--inference", default="build/bench_inference")
    p.add_argument("--runtime")
    p.add_argument("--json")
    p.add_argument("--only-default", action="store_true", help="plain inference and the default preset alone")
    a = p.parse_args()
    columns = ["plain inference", *METHODS, "default preset", "quantize_static, minmax", "AMD Quark, published"]
    if a.only_default:
        columns = ["plain inference", "default preset"]
    print(f"| peak memory, MB | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|", flush=True)
    above, figures = [], {}
    for name, amd in published(a.models).items():
        work = tempfile.mkdtemp()
        try:
            found = cells(a, name, work)
        finally:
            shutil.rmtree(work)
        print(line(name, found, amd), flush=True)
        figures[name] = {tool: run if isinstance(run, str) else round(run["peak_mb"]) for tool, run in found.items()}
        above += [f"{name}, {m}" for m in METHODS if m in found and found[m]["peak_mb"] > found["plain inference"]["peak_mb"]]
    if a.json:
        with open(a.json, "w") as f:
            json.dump(figures, f, indent=1)
    for cell in above:
        print(f"above plain inference: {cell}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
