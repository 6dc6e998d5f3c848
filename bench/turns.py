"""Tools that take turns: A B C A B C ..., so that a busy minute on the machine hurts all of them alike."""

# Only the standard library here and in measure.py, which says why.
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from measure import Run, ToolFailed, inference_cost, measure


@dataclass(frozen=True)
class Tool:
    """One command to be measured: `read` takes what it says itself from its output, `output` is a file it must write."""

    name: str
    method: str
    command: list[str]
    read: Callable[[str], Run] = lambda stdout: {}
    output: str | None = None

    @property
    def key(self) -> str:
        return f"{self.name} {self.method}"


@dataclass(frozen=True)
class Limits:
    """What a child may take: a peer may need several times the machine's memory, and hours."""

    memory_mb: float
    seconds: float


@dataclass
class Turns:
    """The runs of each tool by its key, one for each round; a tool that fails once is not tried again and has no runs."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    failed: dict[str, ToolFailed] = field(default_factory=dict)

    def fail(self, tool: Tool, error: ToolFailed) -> None:
        self.failed[tool.key] = error
        self.runs.pop(tool.key, None)

    def record(self) -> dict[str, Any]:
        """For the file of results: every run, and of what failed all that is known."""
        failed = {key: {"message": str(error), "cost": error.run} for key, error in self.failed.items()}
        return {"runs": self.runs, "failed": failed}


def plain_tools(bench: str, model: str, data: str, samples: int, threads: int) -> list[Tool]:
    command = [bench, model, data + "/bin", "--threads", str(threads), "--repeat-to", str(samples)]
    return [
        Tool("inference", "default", command, inference_cost),
        Tool("inference", "tuned", [*command, "--tuned"], inference_cost),
    ]


def one_run(tool: Tool, env: dict[str, str], scratch: str, limits: Limits) -> Run:
    # A run that writes nothing must not pass on the file of the one before, nor leave temporary files to the next one.
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch)
    if tool.output and os.path.exists(tool.output):
        os.remove(tool.output)
    run = measure(tool.command, {**env, "TMPDIR": scratch}, scratch, limits.memory_mb, limits.seconds)
    stdout = run.pop("stdout")
    if tool.output and not os.path.exists(tool.output):
        raise ToolFailed(tool.command, "wrote no output", stdout, run)
    try:
        run.update(tool.read(stdout))
    except (LookupError, ValueError) as error:
        raise ToolFailed(tool.command, f"cannot read its output: {error!r}", stdout, run) from error
    return run


def take_turns(tools: list[Tool], rounds: int, env: dict[str, str], scratch: str, limits: Limits) -> Turns:
    """Everything is compared with plain inference, so that must succeed; any other tool may fail."""
    turns = Turns()
    for number in range(1, rounds + 1):
        for tool in tools:
            if tool.key in turns.failed:
                continue
            try:
                run = one_run(tool, env, scratch, limits)
            except ToolFailed as error:
                if tool.name == "inference":
                    raise
                turns.fail(tool, error)
                news = "failed: " + error.reason
            else:
                turns.runs.setdefault(tool.key, []).append(run)
                news = f"{run['wall_s']:.2f} s, {run['peak_mb']:.0f} MB"
            print(f"  round {number}/{rounds} {tool.key}: {news}", file=sys.stderr, flush=True)
    shutil.rmtree(scratch, ignore_errors=True)
    return turns
