"""Runs of detent of which one call to the system fails, and what must be true after each.

`make faults` tries every place from which a command makes a call (its first call from there), and prints how many
points were tried; `--every` tries every single call, which takes days. libfailing_calls.so, which lets them fail, is
built by the target `failing_calls`."""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable

import decoders
import graphs
import numpy as np
import onnx
import support

Path = pathlib.Path
LIBRARY = Path(os.environ.get("FAILING_CALLS", support.DETENT.parent / "tests" / "libfailing_calls.so"))
PACKAGE = support.DETENT.parent / "python"
RESOURCE = 4
EARLIER = b"an earlier output"
VOLATILE = {"report.html": b"</html>\n", "trace.json": b"]}\n", "profile.yaml": b"\n"}  # and how whole ones end

PYTHON = """
import ctypes, sys, detent
model, data, output, *statistics = sys.argv[1:]
config = detent.Config(preset="balanced", optimize_for="size", threads=1, bench=False)
ctypes.CDLL(None).detent_start_faults()
try:
    detent.quantize(model, output, data, config, progress=False)
except detent.Error as error:
    print(f"detent: error: {error}", file=sys.stderr)
    sys.exit({"usage": 2, "bad_input": 3, "resource": 4, "device": 5}.get(error.kind, 1))
except MemoryError:  # not even for a message
    print("detent: error: out of memory", file=sys.stderr)
    sys.exit(4)
"""


@dataclasses.dataclass(frozen=True)
class Command:
    """What is run; {model} and the like stand for paths."""

    words: str
    kill: str = ""  # a failpoint at which an earlier run was killed, which this one continues
    earlier: tuple[str, ...] = ("q.onnx",)
    python: bool = False
    measures: bool = False  # times decide what is written, into a folder that appears whole or not at all

    @property
    def resumes(self) -> bool:
        return "--resume" in self.words


COMMON = "--calibration-data {data} --threads 1 --no-bench"
SPOOLED = "--set segments=4 --set memory-level=2 --set spool-access=buffered --set checkpoint-seconds=0"
OF_NET = "--calibration-data {net_data} --threads 1 --no-bench"
OF_DECODER = "--calibration-data {ids} --threads 1 --no-bench"
COMMANDS = {
    "calibrate": Command("calibrate {model} -o {out}/q.onnx --calibration-data {data} --threads 1 " + SPOOLED),
    "quantize": Command("quantize {model} -o {out}/q.onnx --optimize-for size --set external-data-threshold=100 " + COMMON),
    "spooled": Command("quantize {model} -o {out}/q.onnx --preset plain " + f"{SPOOLED} {COMMON}"),
    "reports": Command(
        "quantize {model} -o {out}/q.onnx --preset plain --set prepared-output={out}/p.onnx --report {out}/report.html "
        "--set trace={out}/trace.json --profile {out}/profile.yaml " + COMMON,
        earlier=("q.onnx", "p.onnx"),
    ),
    "gptq": Command("quantize {model} -o {out}/q.onnx --preset plain --finetune gptq --set memory-level=2 " + COMMON),
    "adaround": Command(
        "quantize {model} -o {out}/q.onnx --preset plain --finetune adaround --set num-iterations=5 --set finetune-form=streamed "
        + COMMON
    ),
    "resume": Command(
        "quantize {model} -o {out}/q.onnx --preset plain --resume " + f"{SPOOLED} {COMMON}", kill="calibrate.sample=kill@9"
    ),
    "resume-gptq": Command(
        "quantize {model} -o {out}/q.onnx --preset plain --finetune gptq --resume " + f"{SPOOLED} {COMMON}",
        kill="finetune.solved=kill@2",
    ),
    "statistics": Command("quantize {model} -o {out}/q.onnx --preset plain --statistics {statistics} --threads 1 --no-bench"),
    "merge": Command("calibrate --merge {statistics} {others} -o {out}/q.onnx"),
    "weights": Command("quantize {model} -o {out}/q.onnx --weights-only --op-types Gemm --block-size 16 --no-bench --threads 1"),
    "weights-gptq": Command("quantize {model} -o {out}/q.onnx --weights-only --op-types Gemm --block-size 16 " + COMMON),
    "float16": Command("quantize {model} -o {out}/q.onnx --float 16 " + COMMON),
    "bits-target": Command("quantize {net} -o {out}/q.onnx --weights-only --accuracy-target 20 --accuracy-metric sqnr " + OF_NET),
    "rotation": Command("quantize {decoder} -o {out}/q --weights-only --set rotation=auto " + OF_DECODER, earlier=()),
    "dynamic": Command("quantize {net} -o {out}/q.onnx --activations dynamic " + OF_NET),
    "mixed": Command("quantize {net} -o {out}/q.onnx --node-formats ^.*=int8,matmul8=q4,matmul6=int8-dynamic " + OF_NET),
    "lowered": Command("quantize {net} -o {out}/q.onnx --preset plain --float 16 " + OF_NET),
    "block-floats": Command("quantize {model} -o {out}/q.onnx --format bfp16 --threads 1 --no-bench"),
    "cache": Command("quantize {decoder}/model.onnx -o {out}/q.onnx --preset none --kv-cache int8 " + OF_DECODER),
    "family": Command("quantize {decoder} -o {out}/q --family fp16,q8,q4 --threads 1 --no-bench", earlier=()),
    "speed": Command("quantize {model} -o {out}/q.onnx --optimize-for latency --set kernel-table={kernels} " + COMMON),
    "search": Command(
        "search {model} -o {out}/q --calibration-data {data} --threads 1 --points 1 --formats int8,int8-dynamic "
        "--set kernel-table={kernels}",
        earlier=(),
        measures=True,
    ),
    "folder": Command("quantize {folder} -o {out}/q --weights-only --block-size 16 --threads 1 --no-bench", earlier=()),
    "inspect": Command("inspect {model}"),
    "plan": Command("plan {model} --calibration-data {data}"),
    "compare": Command("compare {model} {quantized} --calibration-data {data} --threads 1"),
    "python": Command("{model} {data} {out}/q.onnx", python=True),
}
KINDS = ["memory", "open", "read", "write", "sync", "rename", "map", "thread", "resize", "mkdir", "stat", "list"]


def make_inputs(folder: Path) -> dict[str, Path]:
    """What all commands read."""
    folder.mkdir()
    folders = ("data", "net_data", "ids", "folder", "decoder", "statistics", "others")
    paths = {name: folder / name for name in folders} | {"kernels": folder / "kernels.json"}
    paths |= {name: folder / f"{name}.onnx" for name in ("model", "net", "quantized")}
    onnx.save(graphs.small_cnn(), paths["model"])
    support.save_samples(paths["data"], graphs.cnn_samples(6))
    onnx.save(graphs.transformer(), paths["net"])
    support.save_samples(paths["net_data"], graphs.transformer_samples(3))
    decoders.genai_folder(paths["decoder"])
    support.save_samples(paths["ids"], [{"input_ids": np.ones((1, 8), np.int64), **decoders.empty_cache()}])
    support.quantize(paths["model"], paths["quantized"], paths["data"])
    support.calibrate(paths["model"], paths["statistics"], paths["data"])
    support.calibrate(paths["model"], paths["others"], support.save_samples(folder / "more", graphs.cnn_samples(3, seed=7)))
    timed = ["--optimize-for", "latency", "--set", f"kernel-table={paths['kernels']}", "--preset", "balanced"]
    support.quantize(paths["model"], folder / "timed.onnx", paths["data"], *timed)  # so that no later run measures
    paths["folder"].mkdir()
    shutil.copy(paths["model"], paths["folder"] / "model.onnx")
    (paths["folder"] / "genai_config.json").write_text(json.dumps({"model": {"decoder": {"filename": "model.onnx"}}}))
    return paths


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Bench:
    """A place of one command's own, brought back to its beginning before each run."""

    def __init__(self, folder: Path, command: Command, inputs: dict[str, Path]) -> None:
        self.command, self.start, self.place = command, folder / "start", folder / "place"
        self.out, self.work = self.place / "out", self.place / "work"
        words = [word.format(out=self.out, **inputs) for word in command.words.split()]
        self.words = [sys.executable, "-c", PYTHON, *words] if command.python else [str(support.DETENT), *words]
        self.environment = {**os.environ, "TMPDIR": str(self.work), "XDG_CACHE_HOME": str(self.place / "cache")}
        if command.python:
            self.environment["PYTHONPATH"] = str(PACKAGE)
        self.begin()

    def begin(self) -> None:
        for path in (self.out, self.work):
            path.mkdir(parents=True)
        for name in self.command.earlier:
            (self.out / name).write_bytes(EARLIER)
        if self.command.kill:
            killed = self.run(DETENT_FAILPOINT=self.command.kill)
            assert killed.returncode == -signal.SIGKILL, killed.stderr
        shutil.copytree(self.place, self.start)

    def restore(self) -> None:
        for path in (self.place, *self.place.rglob("*")):
            path.chmod(0o700)
        shutil.rmtree(self.place)
        shutil.copytree(self.start, self.place)

    def run(self, **settings: str) -> subprocess.CompletedProcess[str]:
        if any(name.startswith("DETENT_FAULT") for name in settings):
            settings["LD_PRELOAD"] = str(LIBRARY)
        environment = {**self.environment, **settings}
        return subprocess.run(
            self.words, capture_output=True, text=True, timeout=120, check=False, env=environment, errors="replace"
        )

    def like(self, other: "Bench") -> None:
        """Of the same command: an undisturbed run there gives what one here would."""
        self.expected, self.before = other.expected, other.before

    def counts(self) -> dict[str, tuple[int, list[int]]]:
        """For each kind of call: how many there are in an undisturbed run, and the first ones from each place. Sets what
        such a run gives."""
        file = self.start.with_name("counts")
        result = self.run(DETENT_FAULT_COUNTS=str(file))
        assert (result.returncode, support.without_notes(result.stderr)) == (0, ""), result.stderr
        assert not list(self.work.iterdir())
        self.expected, self.before = contents(self.out), contents(self.start / "out")
        self.restore()
        found = {}
        for line in file.read_text().splitlines():
            kind, count, *first = line.split(" ")
            found[kind] = int(count), sorted(map(int, first[0].split(","))) if first and first[0] else []
        return found

    def fault(self, point: str) -> tuple[str, str]:
        """What became of a run whose call at this point fails, and what is wrong with it (empty: nothing)."""
        file = self.start.with_name("reached")
        try:
            result = self.run(DETENT_FAULT=point, DETENT_FAULT_COUNTS=str(file))
            wrong = self.wrong(result)
            reached = not file.exists() or file.read_text().startswith("failed")
            became = "passed" if result.returncode == 0 else "refused"
            if "cannot be left" in result.stderr:
                became = "ended at once"
        except subprocess.TimeoutExpired:
            wrong, became, reached = "hangs", "", True
        self.restore()
        file.unlink(missing_ok=True)
        return became if reached else "not reached", wrong

    def wrong(self, result: subprocess.CompletedProcess[str]) -> str:
        # The runtime's library for processors says so itself when it may open no file.
        stderr = "".join(line for line in result.stderr.splitlines(keepends=True) if not line.startswith("Error in cpuinfo: "))
        stderr, code = support.without_notes(stderr), result.returncode
        if code not in (0, RESOURCE):
            return f"exit {code}: {stderr.strip()[-300:]}"
        if code == 0 and stderr:
            return f"exit 0, but says: {stderr.strip()[-300:]}"
        if code != 0 and (stderr.count("\n") != 1 or not stderr.startswith("detent: error: ")):
            return f"exit {code}, but says: {stderr.strip()[-300:]!r}"
        left = [path.name for path in self.work.iterdir()]
        if left and not (self.command.resumes and code != 0 and len(left) == 1):
            return f"exit {code}, leaves {left}"
        return self.wrong_outputs(code, stderr.strip()) or (self.wrong_later() if self.command.resumes and code else "")

    def wrong_outputs(self, code: int, says: str) -> str:
        found = contents(self.out)
        if self.command.measures:
            return wrong_measured(found, code)
        for name in found.keys() | self.expected.keys() | self.before.keys():
            now, whole, before = (state.get(name) for state in (found, self.expected, self.before))
            if name in VOLATILE:
                if now != before and (now is None or not now.endswith(VOLATILE[name])):
                    return f"exit {code}, {name} is partial: {says}"
            elif now != whole and (code == 0 or now != before):
                return f"exit {code}, {name} is neither the earlier output nor the whole new one: {says}"
        names = found.keys() - VOLATILE.keys()
        if names not in (self.expected.keys() - VOLATILE.keys(), self.before.keys() - VOLATILE.keys()):
            return f"exit {code}, leaves {sorted(names)}: {says}"
        return ""

    def wrong_later(self) -> str:
        """The next run, where this one has left what it goes on from."""
        result = self.run()
        if (result.returncode, support.without_notes(result.stderr)) != (0, ""):
            return f"the next run: exit {result.returncode}: {result.stderr.strip()}"
        if list(self.work.iterdir()):
            return "the next run leaves its directory"
        return self.wrong_outputs(0, "the next run")


def wrong_measured(found: dict[str, bytes], code: int) -> str:
    """A search: nothing, or a table of points of which each chosen model is there, and each mixture has its file."""
    if not found:
        return "" if code else "exit 0, and writes nothing"
    table = json.loads(found.get("q/front.json", b"{}") or b"{}")
    names = {"q/front.json", "q/front.html"}
    names |= {f"q/{Path(point['written']).name}" for point in table.get("points", []) if "written" in point}
    names |= {f"q/{point['name']}.yaml" for point in table.get("points", []) if "node_formats" in point}
    whole = found.keys() == names and found["q/front.html"].rstrip().endswith(b"</html>") and len(names) > 2
    return "" if whole else f"exit {code}, leaves {sorted(found)}"


def chosen(total: int, first: list[int], every: bool, sample: int | None) -> list[int]:
    points = list(range(1, total + 1)) if every else first
    if sample is None or len(points) <= sample:
        return points
    return [points[i * (len(points) - 1) // (sample - 1)] for i in range(sample)] if sample > 1 else points[:1]


@dataclasses.dataclass
class Tally:
    became: Counter = dataclasses.field(default_factory=Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)


def counted(benches: list) -> dict[str, tuple[int, list[int]]]:
    counts = benches[0].counts()
    for bench in benches[1:]:
        bench.like(benches[0])
    return counts


def try_points(
    folder: Path, name: str, inputs: dict[str, Path], kinds: dict[str, int | None], jobs: int, every: bool = False
) -> dict[str, Tally]:
    """Runs `name` once for each point: of each kind so many, spread over the run (None: all)."""
    benches = [Bench(folder / f"{job}", COMMANDS[name], inputs) for job in range(jobs)]
    counts = counted(benches)
    points = [f"{kind}@{n}" for kind, sample in kinds.items() for n in chosen(*counts[kind], every, sample)]
    # Alone, and with all later ones of its kind; of a sample, these take turns.
    if COMMANDS[name].python:  # where a whole interpreter runs out with it, only single ones are detent's
        return run_all(benches, name, kinds, points, Bench.fault)
    sampled = any(kinds.values())
    forms = [point + "+" * (i % 2) for i, point in enumerate(points)] if sampled else [p + s for p in points for s in ("", "+")]
    return run_all(benches, name, kinds, forms, Bench.fault)


def run_all(benches: list, name: str, kinds: Iterable[str], points: list[str], one: Callable) -> dict[str, Tally]:
    """one(bench, point) for each point, on as many benches as there are; a point begins with its kind."""
    tallies, free, lock = {kind: Tally() for kind in kinds}, list(benches), threading.Lock()

    def run(point: str) -> None:
        with lock:
            bench = free.pop()
        became, wrong = one(bench, point)
        with lock:
            free.append(bench)
            tally = tallies[point.split("@")[0]]
            tally.became[became] += 1
            if wrong:
                tally.wrong.append(f"{name} {point}: {wrong}")

    with concurrent.futures.ThreadPoolExecutor(len(benches)) as pool:
        for done in [pool.submit(run, point) for point in points]:
            done.result()
    return tallies


def report(name: str, tallies: dict[str, Tally]) -> tuple[Counter, int]:
    """Prints a line for each kind, and one for each defect; the sums."""
    total, wrong = Counter(), 0
    for kind, tally in tallies.items():
        total += tally.became
        wrong += len(tally.wrong)
        counts = ", ".join(f"{count} {what}" for what, count in tally.became.items())
        print(f"{name:<14} {kind:<20} {tally.became.total():>6}  {counts}; {len(tally.wrong)} wrong", flush=True)
        for line in tally.wrong:
            print(f"    {line}", flush=True)
    return total, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", default=list(COMMANDS), help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--every", action="store_true", help="every call, not only the first from each place")
    parser.add_argument("--sample", type=int, help="at most so many points of each kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    total, all_wrong = Counter(), 0
    for name in arguments.commands:
        with tempfile.TemporaryDirectory() as folder:
            kinds = dict.fromkeys(arguments.kinds, arguments.sample)
            inputs = make_inputs(Path(folder) / "inputs")
            became, wrong = report(name, try_points(Path(folder) / "f", name, inputs, kinds, arguments.jobs, arguments.every))
            total, all_wrong = total + became, all_wrong + wrong
    print(f"{total.total()} points: {dict(total)}; {all_wrong} wrong")
    return 1 if all_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
