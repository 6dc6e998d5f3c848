"""What detent.bench() gives back."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple, Self

from ._latency import Latency
from ._results import _Result
from ._tables import Column, Table, count, percent, size


class OperatorTime(NamedTuple):
    """All nodes of one operator type in the graph that the runtime makes of a model."""

    op_type: str
    nodes: int
    seconds: float  #: of one run
    share: float


class BenchedModel(NamedTuple):
    """Latency, size and memory of a model."""

    model: str
    bytes: int  #: on disk, with external data
    load_seconds: float
    latency: Latency
    peak_memory: int | None  #: of a process that loads and runs the model; None if it was not measured
    operators: Table[OperatorTime]  #: slowest first


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def _time_of(which: str, latency: Latency) -> str:
    return _milliseconds(getattr(latency, which))


def _ratio_of(latency: Latency) -> str:
    return f"{latency.ratio:.2f}"


_OPERATORS = (
    Column("operator", "op_type"),
    Column("nodes", "nodes", count),
    Column("ms", "seconds", _milliseconds),
    Column("share", "share", percent),
)
_BENCHED = (
    Column("model", "model"),
    Column("median ms", "latency", functools.partial(_time_of, "median")),
    Column("p90 ms", "latency", functools.partial(_time_of, "p90")),
    Column("CPU ms", "latency", functools.partial(_time_of, "cpu")),
    Column("ratio", "latency", _ratio_of),
    Column("size", "bytes", size),
    Column("peak memory", "peak_memory", size),
)


@dataclasses.dataclass(eq=False, repr=False)
class BenchResult(_Result):
    """Latency, size and memory of models, side by side."""

    models: Table[BenchedModel]
    threads: int
    samples: int
    synthetic: bool  #: the samples
    runtime: str  #: version of ONNX Runtime
    notes: list[str]

    @classmethod
    def of(cls, told: dict[str, Any], **more: Any) -> Self:
        rows = []
        for model in told["models"]:
            operators = Table([OperatorTime(**entry) for entry in model["operators"]], _OPERATORS)
            values = {**model, "model": str(model["model"]), "latency": Latency(**model["latency"]), "operators": operators}
            rows.append(BenchedModel(**values))
        return cls(**{**told, "models": Table(rows, _BENCHED), **more})

    def _heading(self) -> str:
        inputs = "synthetic inputs" if self.synthetic else f"{self.samples} samples"
        return f"{len(self.models)} models in turns on {inputs}, {self.threads} threads, ONNX Runtime {self.runtime}"

    def _shown(self) -> list[Table[Any]]:
        return [self.models, *(model.operators for model in self.models)]
