"""Fuzzes all targets for a time, as many at once as there are processors, and tells what came of it.

    run.py FUZZ WORK [--minutes M] [--targets A,B] [--jobs N]    fuzz; exit code 1 with findings
    run.py FUZZ WORK --coverage                                  lines of the readers that corpus/ reaches
    run.py FUZZ WORK --minimize                                  put into corpus/ what reaches more, as few files as do

WORK keeps what is found between runs: corpora that grow, executions.json with the sums of all runs, and
findings/TARGET-*, which `FUZZ TARGET FILE` runs again.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
# Of targets whose inputs are models, or files of several blocks; the others take 2 KiB.
LONG = ("model", "external", "inspect", "plan", "quantize", "weights", "quantized", "statistics", "spool")
MAX_LENGTH = dict.fromkeys(LONG, 8192)
# The runtime keeps what it made once.
KEEPS_MEMORY = {"plan", "quantize", "weights", "quantized"}
MOST_FINDINGS = 10
# Working files of targets are many and small: on a disk they take most of the time.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass
class Outcome:
    target: str
    executions: int = 0
    coverage_before: int = 0
    coverage: int = 0
    seconds: float = 0
    findings: list[str] = field(default_factory=list)


class Fuzzer:
    def __init__(self, program: Path, work: Path):
        self.program, self.work = program.resolve(), work.resolve()
        self.findings = self.work / "findings"
        self.findings.mkdir(parents=True, exist_ok=True)

    def targets(self) -> list[str]:
        listed = subprocess.run([self.program], capture_output=True, text=True, check=False).stderr
        return sorted(re.findall(r"^  (\w+)$", listed, re.MULTILINE))

    def folders(self, target: str) -> list[Path]:
        own = self.work / target
        own.mkdir(exist_ok=True)
        return [own, *(folder for folder in [CORPUS / target] if folder.is_dir())]

    def call(self, target: str, *arguments: object, timeout: float | None = None) -> str:
        """What the program printed. Its working files are gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=MEMORY) as scratch:
            leaks = "0" if target in KEEPS_MEMORY else "1"
            environment = os.environ | {
                "TMPDIR": scratch,
                "XDG_CACHE_HOME": scratch,
                "ASAN_OPTIONS": f"detect_leaks={leaks}:allocator_may_return_null=0",
                "UBSAN_OPTIONS": "print_stacktrace=1",
                "LLVM_PROFILE_FILE": environment_profile(),
            }
            command = [str(part) for part in (self.program, target, *arguments)]
            done = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, timeout=timeout, check=False)
            return done.stderr.decode(errors="replace")

    def once(self, target: str, seconds: float, outcome: Outcome) -> bool:
        """Fuzzes until the time is over or something is found; tells whether something was."""
        output = self.call(
            target,
            f"-max_total_time={max(1, int(seconds))}",
            f"-max_len={MAX_LENGTH.get(target, 2048)}",
            "-timeout=20",
            "-rss_limit_mb=3000",
            "-print_final_stats=1",
            "-reload=0",
            f"-artifact_prefix={self.findings}/{target}-",
            *self.folders(target),
        )
        outcome.executions += sum(map(int, re.findall(r"number_of_executed_units:\s*(\d+)", output)))
        coverage = [int(n) for n in re.findall(r"\bcov: (\d+)", output)]
        if coverage:
            outcome.coverage_before = outcome.coverage_before or coverage[0]
            outcome.coverage = max(outcome.coverage, *coverage)
        artifact = re.search(r"Test unit written to (\S+/\w+-(?:crash|timeout|oom|leak)-\w+)", output)
        if artifact:
            outcome.findings.append(f"{artifact[1]}: {summary_of(output)}")
            Path(artifact[1] + ".log").write_text(output[-20000:])
        elif "Done" not in output:
            outcome.findings.append(f"{target}: ended by itself: {output[-500:]}")
        return artifact is not None

    def fuzz(self, target: str, seconds: float) -> Outcome:
        outcome, start = Outcome(target), time.monotonic()
        while len(outcome.findings) < MOST_FINDINGS and len(set(outcome.findings)) == len(outcome.findings):
            left = seconds - (time.monotonic() - start)
            if left < 1 or not self.once(target, left, outcome):
                break
        outcome.seconds = time.monotonic() - start
        return outcome

    def minimize(self, target: str) -> None:
        """Leaves in corpus/TARGET the named files, which are regressions, and as few others as reach all edges."""
        own, known = self.work / target, CORPUS / target
        known.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
            named, fresh = Path(scratch) / "named", Path(scratch) / "fresh"
            named.mkdir()
            fresh.mkdir()
            for file in known.iterdir():
                if not is_hash(file.name):
                    shutil.copy(file, named)
            length = f"-max_len={MAX_LENGTH.get(target, 2048)}"
            self.call(target, "-set_cover_merge=1", "-use_counters=0", length, "-timeout=20", fresh, named, known, own)
            for file in known.iterdir():
                if is_hash(file.name):
                    file.unlink()
            for file in sorted(fresh.iterdir()):
                shutil.copy(file, known / file.name[:16])
        print(f"{target}: {len(list(known.iterdir()))} files, {sum(f.stat().st_size for f in known.iterdir())} bytes")

    def coverage(self) -> None:
        """Prints the lines of each reader and those that corpus/ reaches, as llvm-cov counts them."""
        with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
            os.environ["LLVM_PROFILE_FILE"] = f"{scratch}/%p.profraw"
            for target in self.targets():
                self.call(target, "-runs=0", CORPUS / target)
            merged = f"{scratch}/all.profdata"
            raw = sorted(Path(scratch).glob("*.profraw"))
            subprocess.run(["llvm-profdata", "merge", "-sparse", "-o", merged, *raw], check=True)
            command = ["llvm-cov", "export", "-summary-only", f"-instr-profile={merged}", self.program]
            listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["data"][0]
            (self.work / "uncovered.txt").write_text(
                subprocess.run(
                    ["llvm-cov", "show", f"-instr-profile={merged}", "-region-coverage-lt=100", self.program],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
        sources = [file for file in listed["files"] if "/src/" in file["filename"] and file["filename"].endswith(".cpp")]
        total = [0, 0]
        for file in sources:
            lines = file["summary"]["lines"]
            total = [total[0] + lines["covered"], total[1] + lines["count"]]
            name = file["filename"].split("/src/")[-1]
            print(f"{name:<36}{lines['covered']:>6} of {lines['count']:>5}{lines['percent']:>8.1f} %")
        print(f"{'all':<36}{total[0]:>6} of {total[1]:>5}{100 * total[0] / max(1, total[1]):>8.1f} %")


def environment_profile() -> str:
    return os.environ.get("LLVM_PROFILE_FILE", "/dev/null")


def is_hash(name: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{16,40}", name) is not None


def summary_of(output: str) -> str:
    for pattern in (r"^(fuzz: it does.*)", r"runtime error: (.*)", r"what\(\):(.*)", r"SUMMARY: (.*)", r"ERROR: (.*)"):
        found = re.findall(pattern, output, re.MULTILINE)
        if found:
            return found[-1]
    return output.strip().splitlines()[-1] if output.strip() else "no output"


def add_up(file: Path, outcomes: list[Outcome]) -> None:
    """Keeps the executions of all runs so far."""
    counts = json.loads(file.read_text()) if file.exists() else {}
    for o in outcomes:
        counts[o.target] = counts.get(o.target, 0) + o.executions
    file.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")


def report(outcomes: list[Outcome]) -> None:
    print(f"{'target':<14}{'executions':>14}{'per second':>12}{'edges':>9}{'new':>7}{'findings':>10}")
    for o in outcomes:
        rate = o.executions / o.seconds if o.seconds else 0
        print(
            f"{o.target:<14}{o.executions:>14,}{rate:>12,.0f}{o.coverage:>9}{o.coverage - o.coverage_before:>7}"
            f"{len(o.findings):>10}"
        )
    print(f"{'all':<14}{sum(o.executions for o in outcomes):>14,}")
    for o in outcomes:
        for finding in sorted(set(o.findings)):
            print(f"finding: {finding}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fuzz", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--targets")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minimize", action="store_true")
    parser.add_argument("--coverage", action="store_true")
    given = parser.parse_args()
    fuzzer = Fuzzer(given.fuzz, given.work)
    targets = given.targets.split(",") if given.targets else fuzzer.targets()
    if given.coverage:
        fuzzer.coverage()
        return 0
    if given.minimize:
        for target in targets:
            fuzzer.minimize(target)
        return 0
    jobs = min(given.jobs, len(targets))
    seconds = 60 * given.minutes * jobs / len(targets)
    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(lambda target: fuzzer.fuzz(target, seconds), targets))
    report(outcomes)
    add_up(fuzzer.work / "executions.json", outcomes)
    return 1 if any(o.findings for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
