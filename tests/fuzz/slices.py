"""Long fuzzing in slices: each takes a few minutes, and what is known is kept after each, so that it may end at any time.

    slices.py WORK [--fuzz FUZZ] [--replay REPLAY] [--detent DETENT] [--hours H] [--slice MINUTES]

Slices take turns: libFuzzer on the target that had the fewest executions for its time (--fuzz), changed inputs of the
corpora (--replay), and models through detent and ONNX Runtime (--detent), the latter two with another seed each time. WORK
keeps the corpora that grow (as run.py does), findings/ and slices.json: seeds, executions and findings so far. The next
call goes on from there. Exit code 1 where this call found something.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from run import CORPUS, Fuzzer

REPLAYED = 200_000  # changed inputs of a slice


class Slices:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.file = given, given.work / "slices.json"
        given.work.mkdir(parents=True, exist_ok=True)
        self.state = {"slices": 0, "executions": {}, "seconds": {}, "findings": []}
        if self.file.exists():
            self.state |= json.loads(self.file.read_text())
        self.fuzzer = Fuzzer(given.fuzz, given.work) if given.fuzz else None
        self.seconds = 60 * given.slice
        kinds = {"fuzz": given.fuzz, "changed": given.replay, "models": given.detent}
        self.kinds = [name for name, program in kinds.items() if program]

    def next(self) -> None:
        kind = self.kinds[self.state["slices"] % len(self.kinds)]
        slice_of: dict[str, Callable[[int], tuple[str, int, list[str]]]] = {
            "fuzz": self.fuzz,
            "changed": self.changed,
            "models": self.models,
        }
        start = time.monotonic()
        target, executions, findings = slice_of[kind](1 + self.state["slices"])
        for table, more in (("executions", executions), ("seconds", time.monotonic() - start)):
            self.state[table][target] = round(self.state[table].get(target, 0) + more)
        self.state["findings"] += findings
        self.state["slices"] += 1
        self.keep()
        print(f"{self.state['slices']}: {target}, {executions:,} executions, {len(findings)} findings", flush=True)
        for finding in findings:
            print(f"finding: {finding}", flush=True)

    def keep(self) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(self.state, indent=1, sort_keys=True) + "\n")
        fresh.replace(self.file)

    def fuzz(self, _: int) -> tuple[str, int, list[str]]:
        assert self.fuzzer is not None
        target = min(self.fuzzer.targets(), key=lambda name: self.state["seconds"].get(name, 0))
        outcome = self.fuzzer.fuzz(target, self.seconds)
        return target, outcome.executions, sorted(set(outcome.findings))

    def changed(self, seed: int) -> tuple[str, int, list[str]]:
        command = [self.given.replay, CORPUS, REPLAYED, seed]
        done = self.run(command)
        ran = sum(int(n) for n in re.findall(r"(\d+) changed inputs", done.stdout))
        name = f"changed inputs of seed {seed}"
        return "changed", ran or REPLAYED, [f"{name}: {done.stderr[-500:]}"] if done.returncode != 0 else []

    def models(self, seed: int) -> tuple[str, int, list[str]]:
        keep = self.given.work / "findings"
        script = Path(__file__).with_name("differential.py")
        done = self.run([sys.executable, script, self.given.detent, "--minutes", self.given.slice, "--seed", seed, "--keep", keep])
        ran = re.search(r"^(\d+) models", done.stdout, re.MULTILINE)
        findings = re.findall(r"^finding: (.*)$", done.stdout, re.MULTILINE)
        if ran is None:
            findings.append(f"differential.py of seed {seed} ended with {done.returncode}: {done.stderr[-500:]}")
        return "models", int(ran[1]) if ran else 0, findings

    def run(self, command: list[object]) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        return subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, env=os.environ)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--fuzz", type=Path)
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--detent", type=Path)
    parser.add_argument("--hours", type=float, default=1)
    parser.add_argument("--slice", type=float, default=5)
    slices = Slices(parser.parse_args())
    if not slices.kinds:
        parser.error("give --fuzz, --replay or --detent")
    known, until = len(slices.state["findings"]), time.monotonic() + 3600 * slices.given.hours
    while time.monotonic() < until:
        slices.next()
    total = sum(slices.state["executions"].values())
    print(f"{slices.state['slices']} slices, {total:,} executions, {len(slices.state['findings'])} findings in all")
    return 1 if len(slices.state["findings"]) > known else 0


if __name__ == "__main__":
    sys.exit(main())
