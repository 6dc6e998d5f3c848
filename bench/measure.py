"""What the benchmarks share: running a child and reading its cost, and making the models and samples they are given.

Only the standard library here: on Linux a child's peak memory starts from its parent's at exec, so the parent stays small."""

import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
MADE = {
    "resnet50": ["resnet50"],
    "resnet18": ["resnet18"],
    "resnet50_bn": ["resnet50", "--bn"],
    "rrdb": ["rrdb"],
    "rrdb_128": ["rrdb", "--size", "128"],
    "bert": ["bert"],
    "rrdb_small": ["rrdb", "--blocks", "1", "--size", "128"],
    "conv3": ["conv3"],
}
# conv3 asks what a sample much smaller than the rest does to a histogram, so its samples are such.
SAMPLES = {"conv3": ["--first-scale", "1e-5"]}
# What Python, numpy, C++ and ONNX Runtime say when an allocation is refused.
OUT_OF_MEMORY = ("MemoryError", "Unable to allocate", "bad_alloc", "bad allocation", "Failed to allocate memory")

Run = dict[str, Any]  # cost of one run of one tool: wall_s, cpu_s, peak_mb, written_mb, and what the tool says itself


class ToolFailed(RuntimeError):
    """A child that did not do its work: a reason of a few words, and in the message also the end of what it printed."""

    def __init__(self, command: list[str], reason: str, output: str, run: Run):
        super().__init__(f"{' '.join(command)}: {reason}\n{output[-2000:]}")
        self.reason = reason
        self.run = run


def measure(command: list[str], env: dict[str, str], cwd: str | None = None, memory_mb: float = 0, seconds: float = 0) -> Run:
    """Run to the end; wall and CPU seconds and peak memory as the operating system counts them. With limits, a child that
    passes `memory_mb` of memory of its own (files it maps do not count) or `seconds` fails instead of taking the machine along."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        child = subprocess.Popen(command, stdout=out, stderr=err, env=env, cwd=cwd)
        if memory_mb:
            limit = int(memory_mb * 2**20)
            resource.prlimit(child.pid, resource.RLIMIT_DATA, (limit, limit))
        # Not child.kill(): it would collect the exit status that wait4 is to collect.
        signal.signal(signal.SIGALRM, lambda *_: os.kill(child.pid, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, seconds)  # 0: none
        try:
            _, status, use = os.wait4(child.pid, 0)
        except KeyboardInterrupt:
            os.kill(child.pid, signal.SIGKILL)
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        run = {
            "wall_s": time.monotonic() - start,
            "cpu_s": use.ru_utime + use.ru_stime,
            "peak_mb": use.ru_maxrss / 1024,
            "written_mb": use.ru_oublock / 2048,
        }
        out.seek(0), err.seek(0)
        stdout, stderr = (f.read().decode(errors="replace") for f in (out, err))
        if child.returncode != 0:
            late = 0 < seconds <= run["wall_s"]
            reason = f"over {seconds:.0f} s" if late else why(child.returncode, stdout + stderr, memory_mb)
            raise ToolFailed(command, reason, stdout + stderr, run)
        return {**run, "stdout": stdout}


def why(code: int, output: str, memory_mb: float) -> str:
    if memory_mb and any(word in output for word in OUT_OF_MEMORY):
        return f"needs more than {memory_mb:.0f} MB of its own"
    lines = output.strip().splitlines() or [""]
    return f"exit {code}: {lines[-1][:120]}" if code >= 0 else f"killed by signal {-code}"


def inference_cost(stdout: str) -> Run:
    """What bench_inference prints, and as its stage the session and the loop: detent's Calibration stage loads the model too."""
    cost = json.loads(stdout)
    return {**cost, "stage_s": cost["session_s"] + cost["loop_s"]}


def peer_stage(stdout: str) -> float:
    """Seconds of calibration, in the last line that a child made with peers.py prints."""
    return json.loads(stdout.splitlines()[-1])["stage_s"]


def median(runs: list[Run], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def ratio(runs: list[Run], key: str, base: list[Run], base_key: str | None = None) -> float:
    """The ratio within each round, then the median, so that a busy minute hurts both sides alike."""
    return statistics.median(run[key] / other[base_key or key] for run, other in zip(runs, base))


def memory_limit(tuned: list[Run]) -> float:
    return 1.05 * median(tuned, "peak_mb") + 48


def memory_rules(runs: list[Run], default: list[Run], tuned: list[Run]) -> dict[str, bool]:
    peak = median(runs, "peak_mb")
    return {
        "peak <= default": peak <= median(default, "peak_mb"),
        "peak <= 1.05 tuned + 48 MiB": peak <= memory_limit(tuned),
    }


def environment(runtime: str | None) -> dict[str, str]:
    """With the runtime library of detent and bench_inference as an absolute path: children run in a folder of their own."""
    env = dict(os.environ, ORT_DISABLE_TELEMETRY="1")
    library = runtime or env.get("DETENT_ONNXRUNTIME") or "build/libonnxruntime.so"
    if runtime or os.path.exists(library):
        env["DETENT_ONNXRUNTIME"] = os.path.abspath(library)
    return env


def missing(specs: Iterable[str], *files: str) -> list[str]:
    """The paths among the models and files that do not exist."""
    paths = [spec.split(",")[0] for spec in specs]
    return [path for path in [p for p in paths if p not in MADE] + list(files) if not os.path.exists(path)]


def prepare(spec: str, work: str) -> tuple[str, str, list[str]]:
    """(name, path of the model, options of make_samples.py) of one MODEL argument"""
    path, *shapes = spec.split(",")
    options = [x for s in shapes for x in ("--shape", s)]
    if path not in MADE:
        return os.path.splitext(os.path.basename(path))[0], os.path.abspath(path), options
    made = f"{work}/{path}.onnx"
    subprocess.run([sys.executable, HERE + "/models.py", MADE[path][0], made, *MADE[path][1:]], check=True)
    return path, made, options + SAMPLES.get(path, [])


def make_samples(model: str, data: str, count: int, options: list[str]) -> None:
    shutil.rmtree(data, ignore_errors=True)
    subprocess.run([sys.executable, HERE + "/make_samples.py", model, data, "-n", str(count), *options], check=True)
