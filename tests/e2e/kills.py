"""Runs of detent that die at any instant, and what must be true then and after the next run.

`make faults` kills each command before every call that changes files, with and without losing what was not yet brought to
the disk, at every fail point as often as it is passed, and at random times, up to three times in a row."""

import argparse
import dataclasses
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import faults
import support
from faults import Counter, Path

CHANGING = ["open", "write", "sync", "rename", "resize", "mkdir"]
# What cannot be resumed is run again.
RESUMED = ["calibrate", "quantize", "spooled", "gptq", "adaround", "weights-gptq", "float16", "bits-target", "lowered", "speed"]
AGAIN = ["reports", "statistics", "merge", "weights", "folder", "rotation", "dynamic", "mixed", "block-floats", "cache", "family"]
COMMANDS = {name: faults.COMMANDS[name] for name in [*RESUMED, *AGAIN, "search"]}
# A profile is written as a run goes on; before its first line is on the disk, nothing tells it from another file.
COMMANDS["reports"] = dataclasses.replace(
    COMMANDS["reports"], words=COMMANDS["reports"].words.replace("--profile {out}/profile.yaml ", "")
)
for _name in RESUMED:
    COMMANDS[_name] = dataclasses.replace(COMMANDS[_name], words=COMMANDS[_name].words + " --resume")
SOURCES = pathlib.Path(support.ROOT / "src")
FAIL_POINTS = sorted({p for f in SOURCES.rglob("*.cpp") for p in re.findall(r'failpoint\("([\w.]+)"\)', f.read_text())})
MOST = 200  # of one fail point


class Bench(faults.Bench):
    """Where a run is killed and goes on."""

    def kill(self, points: list[str], delay: float = 0) -> tuple[str, str]:
        """Dies at each of the points, one after another ("": after `delay` seconds), and then goes on."""
        became = "not reached"
        for point in points:
            if self.done():
                break
            code, stderr = self.run_until(point, delay)
            wrong = self.torn()
            if code == -signal.SIGKILL:
                became = "killed"
            elif code != 0 or stderr:
                wrong = wrong or f"exit {code}: {stderr[-300:]}"
            if wrong:
                self.restore()
                return became, wrong
            if code == 0:  # done before it could die
                break
        if became == "killed":
            wrong = self.wrong_then()
        self.restore()
        return became, wrong

    def run_until(self, point: str, delay: float) -> tuple[int, str]:
        settings = {}
        if "=" in point:
            settings = {"DETENT_FAILPOINT": point}
        elif point:
            settings = {"DETENT_FAULT": point, "LD_PRELOAD": str(faults.LIBRARY)}
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(self.words, env={**self.environment, **settings}, **streams) as process:
            if not point:
                time.sleep(delay)
                process.kill()
            stderr = process.communicate(timeout=120)[1]
        return process.returncode, support.without_notes(stderr).strip()

    def visible(self) -> dict[str, bytes]:
        """Outputs; what a killed process was writing may stay beside them under a hidden name."""
        found = faults.contents(self.out)
        return {name: now for name, now in found.items() if not name.startswith(".") and name not in faults.VOLATILE}

    def torn(self) -> str:
        if self.command.measures:
            return faults.wrong_measured(self.visible(), -signal.SIGKILL)
        for name, now in self.visible().items():
            if now not in (self.expected.get(name), self.before.get(name)):
                return f"{name} is neither the earlier output nor the whole new one"
        return ""

    def to_come(self) -> dict[str, bytes]:
        return {name: whole for name, whole in self.expected.items() if name not in faults.VOLATILE}

    def done(self) -> bool:
        """The outputs are all there, and are nothing that a next run would write over, as a folder."""
        found = self.visible()
        return not self.command.earlier and (found == self.to_come() or bool(self.command.measures and found))

    def wrong_then(self) -> str:
        expected = self.to_come()
        if self.done():
            return ""
        result = self.run()
        if (result.returncode, support.without_notes(result.stderr)) != (0, ""):
            return f"the next run: exit {result.returncode}: {result.stderr.strip()[-300:]}"
        if self.command.measures:
            return faults.wrong_measured(self.visible(), 0)
        if self.visible() != expected:
            return f"the next run writes other outputs: {sorted(self.visible())}"
        left = list(self.work.glob("detent-run-*"))
        return f"the next run leaves {left}" if self.resumed and left else ""

    @property
    def resumed(self) -> bool:
        return "--resume" in self.words

    def one(self, point: str) -> tuple[str, str]:
        """`point` as run_all() has them: KIND@N!, KIND@N?, NAME@N of a fail point, or random@SEED."""
        kind, rest = point.split("@")
        if kind == "random":
            chance = random.Random(int(rest))
            kills = chance.choice([1, 1, 2, 3])
            return self.kill([""] * kills, chance.uniform(0, 1.1 * self.seconds))
        return self.kill([point if kind in CHANGING else f"{kind}=kill@{rest}"])

    def like(self, other: "Bench") -> None:
        super().like(other)
        self.seconds = other.seconds

    def counts(self) -> dict[str, tuple[int, list[int]]]:
        found = super().counts()
        begun = time.monotonic()
        self.run()
        self.seconds = time.monotonic() - begun
        self.restore()
        return found


def spread(points: list, sample: int | None) -> list:
    return [points[n - 1] for n in faults.chosen(len(points), [], True, sample)]


def passes(bench: Bench, point: str) -> int:
    """How often the command passes a fail point, MOST at the most."""
    low, high = 0, 1
    while high <= MOST and bench.run_until(f"{point}=kill@{high}", 0)[0] == -signal.SIGKILL:
        bench.restore()
        low, high = high, 2 * high
    bench.restore()
    while high - low > 1:
        middle = (low + high) // 2
        reached = bench.run_until(f"{point}=kill@{middle}", 0)[0] == -signal.SIGKILL
        bench.restore()
        low, high = (middle, high) if reached else (low, middle)
    return low


KINDS = [*CHANGING, *FAIL_POINTS]


def try_kills(
    folder: Path, name: str, inputs: dict[str, Path], jobs: int, kinds: dict[str, int | None], at_random: int
) -> dict[str, faults.Tally]:
    """Kills `name` at so many points of each kind (None: all), and `at_random` times at random."""
    benches = [Bench(folder / f"{job}", COMMANDS[name], inputs) for job in range(jobs)]
    counts = faults.counted(benches)
    points = [f"random@{seed}" for seed in range(at_random)]
    for kind, sample in kinds.items():
        if kind in CHANGING:
            points += spread([f"{kind}@{n}{how}" for n in range(1, counts[kind][0] + 1) for how in "!?"], sample)
        else:
            points += spread([f"{kind}@{n}" for n in range(1, passes(benches[0], kind) + 1)], sample)
    return faults.run_all(benches, name, [*kinds, "random"], points, Bench.one)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", default=list(COMMANDS), help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--sample", type=int, help="at most so many points of each kind")
    parser.add_argument("--random", type=int, default=100, help="kills at random of each command")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    total, all_wrong = Counter(), 0
    for name in arguments.commands:
        with tempfile.TemporaryDirectory() as folder:
            kinds = dict.fromkeys(KINDS, arguments.sample)
            inputs = faults.make_inputs(Path(folder) / "inputs")
            tallies = try_kills(Path(folder) / "f", name, inputs, arguments.jobs, kinds, arguments.random)
            became, wrong = faults.report(name, {kind: tally for kind, tally in tallies.items() if tally.became})
            total, all_wrong = total + became, all_wrong + wrong
    print(f"{total.total()} kills: {dict(total)}; {all_wrong} wrong")
    return 1 if all_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
