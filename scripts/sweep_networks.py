#!/usr/bin/env python3
"""Networks in the idioms of exporters, quantized for every target: how many are right, refused clearly, or wrong.

    sweep_networks.py [--count N] [--first SEED] [--each N | --target NAME…] [--preset NAME]… [--layers]
                      [--jobs N] [--refusals]

Wrong ones are listed with the seed of their network (tests/networks/networks.py), then comes a table, also of a sweep that is
interrupted. Ends with 1 where any is wrong.
All targets, if none is given; with --each N so many of them for each network, in turns, so that many networks cost little.
Presets take turns with the seeds, if none is given. For a Python that has onnx, numpy and onnxruntime, such as build/venv's."""

import argparse
import collections
import concurrent.futures
import contextlib
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "networks"))

from judge import TARGETS, Verdict, in_turns, judged
from networks import network

PRESETS = ("plain", "balanced")


def verdicts(seed: int, options: argparse.Namespace) -> list[tuple[str, Verdict]]:
    made = network(seed)
    presets = options.preset or [PRESETS[seed % 2]]
    targets = in_turns(seed, options.each) if options.each else options.target or TARGETS
    found = []
    for preset in presets:
        with tempfile.TemporaryDirectory(prefix="detent-networks-") as name:
            folder = Path(name)
            found += [(preset, judged(made, t, preset, folder, with_layers=options.layers)) for t in targets]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--each", type=int, choices=range(1, len(TARGETS) + 1), metavar="N")
    which.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--preset", action="append")
    parser.add_argument("--layers", action="store_true", help="compare each layer with exact integers as well")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--refusals", action="store_true", help="list these as well")
    options = parser.parse_args()
    counts, far = collections.Counter(), collections.defaultdict(list)
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool, contextlib.suppress(KeyboardInterrupt):
        seeds = range(options.first, options.first + options.count)
        for seed, found in zip(seeds, pool.map(verdicts, seeds, [options] * len(seeds)), strict=True):
            for preset, verdict in found:
                counts[verdict.target, verdict.kind] += 1
                if verdict.sqnr_db is not None:
                    far[verdict.target].append(verdict.sqnr_db)
                told = verdict.faults or ([verdict.refusal] if options.refusals and verdict.refusal else [])
                for line in told:
                    print(f"{seed} ({verdict.network}), {verdict.target}, {preset}: {line}", flush=True)
    print("| target | right | refused clearly | wrong | median dB | lowest |\n|---|---|---|---|---|---|")
    for target in options.target or TARGETS:
        numbers = [str(counts[target, kind]) for kind in ("right", "refused", "wrong")]
        db = sorted(far[target])
        numbers += [f"{db[len(db) // 2]:.1f}", f"{db[0]:.1f}"] if db else ["–", "–"]
        print(f"| `{target}` | {' | '.join(numbers)} |")
    sys.exit(any(kind == "wrong" and count for (_, kind), count in counts.items()))


if __name__ == "__main__":
    main()
