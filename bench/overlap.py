#!/usr/bin/env python3
"""How well the sweep's reading and writing hides behind its computing, and what budgets do to a model of large activations.

  overlap.py MODEL SAMPLES [--segments 8] [--rounds 3] [--budget SIZE] [--detent PATH] [--bench-spool PATH] [--dir DIR]

The same segments run with all that waits in memory (level 0: compute alone) and on disk (level 2), taking turns; each
figure is the least of its rounds, since others on the machine only add. I/O alone is what level 2 wrote and read over
what plain requests of the same kind reach in the same run (bench_spool, where its path is given). With --budget also a
plain run and one under that budget."""

import argparse
import pathlib
import re
import subprocess
import tempfile
import time

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_size(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+) ?([KMG]?i?B)", text).groups()
    return float(number) * UNITS[unit]


def run(args: argparse.Namespace, folder: pathlib.Path, *options: str) -> dict:
    """Wall time of calibration, peak memory, bytes written and read, hash of the statistics."""
    output = folder / "overlap.stats"
    command = [
        args.detent,
        "calibrate",
        "--verbose",
        args.model,
        "--preset",
        "plain",
        "-o",
        output,
        "--calibration-data",
        args.samples,
        "--work-dir",
        folder,
    ]
    start = time.monotonic()
    result = subprocess.run([*map(str, command), *options], capture_output=True, text=True, check=True)
    whole = time.monotonic() - start
    seconds = float(re.search(r"^Calibration +([\d.]+) s", result.stdout, re.MULTILINE).group(1))
    peak = parse_size(re.search(r"peak memory ([\d.]+ \w+)", result.stdout).group(1))
    moved = re.search(r"\(([\d.]+ \w+) written, ([\d.]+ \w+) read\)", result.stdout)
    written, read = (parse_size(text) for text in moved.groups()) if moved else (0, 0)
    cut = re.search(r"the model ran in (\d+) segments", result.stdout)
    same = output.read_bytes()
    output.unlink()
    return {
        "seconds": seconds,
        "whole": whole,
        "peak": peak,
        "written": written,
        "read": read,
        "segments": int(cut.group(1)) if cut else 1,
        "bytes": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("samples", type=pathlib.Path)
    parser.add_argument("--segments", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget")
    parser.add_argument("--rates", default="0.5,0.5", help="GB/s of plain writes and reads (default 0.5,0.5)")
    parser.add_argument("--bench-spool", type=pathlib.Path)
    parser.add_argument("--detent", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "build" / "detent")
    parser.add_argument("--dir", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as name:
        folder = pathlib.Path(name)
        memory, disk = [], []
        for _ in range(args.rounds):
            memory.append(run(args, folder, "--set", f"segments={args.segments}", "--set", "memory-level=0"))
            disk.append(run(args, folder, "--set", f"segments={args.segments}", "--set", "memory-level=2"))
        assert len({each["bytes"] for each in memory + disk}) == 1, "results differ"
        compute, both = (min(each["seconds"] for each in runs) for runs in (memory, disk))
        write_rate, read_rate = (float(rate) * 1e9 for rate in args.rates.split(","))
        alone = disk[0]["written"] / write_rate + disk[0]["read"] / read_rate
        moved = [disk[0][way] / 2**20 for way in ("written", "read")]
        print(f"{disk[0]['segments']} segments, {moved[0]:.0f} MiB written, {moved[1]:.0f} MiB read")
        print(f"compute alone (level 0): {compute:.2f} s  {sorted(round(each['seconds'], 2) for each in memory)}")
        print(f"I/O alone at {args.rates} GB/s: {alone:.2f} s")
        print(f"level 2: {both:.2f} s  {sorted(round(each['seconds'], 2) for each in disk)}")
        print(f"ratio to the larger of the two: {both / max(compute, alone):.3f}")
        if args.budget:
            plain, tight = run(args, folder), run(args, folder, "--memory-budget", args.budget)
            for what, found in (("plain", plain), (f"--memory-budget {args.budget}", tight)):
                print(f"{what}: peak {found['peak'] / 2**20:.0f} MiB, {found['seconds']:.1f} s, {found['segments']} segments")
            print("same bytes" if plain["bytes"] == tight["bytes"] else "DIFFERENT BYTES")
        if args.bench_spool:
            print(subprocess.run([args.bench_spool, folder, "1", "8", "3"], capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
