#!/usr/bin/env python3
"""What profiling costs: `detent calibrate` with and without --profile in turns, and the share of its sampling thread.

profiling_overhead.py MODEL DATA [--detent build/detent] [--rounds 7] [-- options of calibrate]

The sampling thread runs in either case, since the peaks of the stages come from it, so its processor time is read off as well."""

import argparse
import os
import pathlib
import statistics
import subprocess  # only the standard library, as in run.py
import tempfile
import time


def sampler_seconds(pid):
    """Processor time of the profiler's thread so far; 0 when there is none (any more)."""
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        try:
            if (task / "comm").read_text().strip() == "detent-profile":
                return int((task / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            continue
    return 0.0


def run(command):
    """Wall and processor seconds of the command, and those of its sampling thread, as far as they were seen."""
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    sampler = 0.0
    while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        sampler = max(sampler, sampler_seconds(child.pid))
        time.sleep(0.02)
    wall = time.monotonic() - start
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "sampler": sampler}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("data")
    p.add_argument("--detent", default="build/detent")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("options", nargs="*", help="options of detent calibrate, after --")
    a = p.parse_args()
    runs = {"plain": [], "profile": []}
    with tempfile.TemporaryDirectory() as folder:
        plain = [
            a.detent,
            "calibrate",
            a.model,
            "--preset",
            "plain",
            "-o",
            f"{folder}/out.stats",
            "--calibration-data",
            a.data,
            *a.options,
        ]
        commands = {"plain": plain, "profile": [*plain, "--profile", f"{folder}/profile.yaml"]}
        run(plain)  # brings the files into the page cache
        for round_number in range(a.rounds):
            # Who goes first changes, so that whatever drifts hurts both alike.
            for name in sorted(commands, reverse=round_number % 2 == 1):
                runs[name].append(run(commands[name]))
    pairs = list(zip(runs["profile"], runs["plain"], strict=True))
    for key in ("wall", "cpu"):
        ratios = [profiled[key] / bare[key] for profiled, bare in pairs]
        seconds = statistics.median(bare[key] for _, bare in pairs)
        span = f"{min(ratios):.4f} to {max(ratios):.4f}"
        print(f"{key:4} {seconds:7.3f} s without; with --profile x {statistics.median(ratios):.4f} ({span})")
    everyone = runs["plain"] + runs["profile"]
    share = statistics.median(r["sampler"] / r["wall"] for r in everyone)
    print(f"sampling thread: {100 * share:.2f} % of one core's time")


if __name__ == "__main__":
    main()
