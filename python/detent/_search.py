"""What detent.search() gives back."""

from __future__ import annotations

import dataclasses
import html
import os
from typing import Any, NamedTuple, Self

from ._results import _TABLES, Stage, _Result
from ._tables import Column, Table, fixed, size


class SearchPoint(NamedTuple):
    """A model that was written, run and measured as deployed."""

    name: str  #: "mixed-3", or a format: "int8"
    single: bool  #: one format for all
    node_formats: list[str]  #: as Config.node_formats
    command: str  #: that makes it alone, byte for byte
    sqnr_db: float  #: of the worst output
    error: float  #: sum of squared errors over that of squares
    expected_error: float
    value: float | None  #: of the metric that was asked for
    seconds: float  #: of one sample
    expected_seconds: float
    bytes: int
    on_front: bool
    chosen: list[str]  #: "smallest", "fastest", "most accurate", "meets the limits"
    written: str | None  #: where a chosen model lies


class ServingMachine(NamedTuple):
    """The model that serves most requests on a machine within the limits."""

    machine: str
    model: str  #: SearchPoint.name
    seconds: float  #: expected of a request, by that machine's times of operators
    instances: int  #: of the model at a time
    requests: float  #: a second
    peak_memory: int  #: of an instance, as measured here
    price: float  #: of an hour
    needed: int  #: of such machines, of those that serve all requests for the least


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def _yes(value: bool) -> str:
    return "yes" if value else ""


_POINTS = (
    Column("model", "name"),
    Column("ms", "seconds", _milliseconds),
    Column("size", "bytes", size),
    Column("SQNR dB", "sqnr_db", fixed(1)),
    Column("front", "on_front", _yes),
    Column("chosen as", "chosen", ", ".join),
)


_MACHINES = (
    Column("machine", "machine"),
    Column("model", "model"),
    Column("ms", "seconds", _milliseconds),
    Column("requests/s", "requests", fixed(1)),
    Column("memory", "peak_memory", size),
    Column("price/h", "price", fixed(4)),
    Column("needed", "needed"),
)


@dataclasses.dataclass(eq=False, repr=False)
class SearchResult(_Result):
    """The front of size, latency and accuracy. In a notebook it draws itself."""

    points: Table[SearchPoint]  #: fastest first
    machines: Table[ServingMachine]  #: that can serve within the limits, by price of a request
    candidates: int  #: measured, of products and formats
    samples: int
    inferences: int  #: of the whole model, about
    out_of_time: bool  #: models that were wanted are missing
    notes: list[str]
    stages: Table[Stage]
    peak_memory: int
    folder: str  #: with front.json, front.html and the chosen models

    @classmethod
    def of(cls, told: dict[str, Any], **more: Any) -> Self:
        points = [SearchPoint(**{**p, "written": p["written"] and str(p["written"])}) for p in told["points"]]
        kind, columns = _TABLES["Stage"]
        stages = Table([kind(**stage) for stage in told["stages"]], columns)
        table = Table(sorted(points, key=_seconds_of), _POINTS)
        machines = Table([ServingMachine(**machine) for machine in told["machines"]], _MACHINES)
        return cls(**{**told, "points": table, "machines": machines, "stages": stages, **more})

    @property
    def front(self) -> list[SearchPoint]:
        """Points that no other one beats."""
        return [point for point in self.points if point.on_front]

    @property
    def chosen(self) -> dict[str, SearchPoint]:
        """By what they were chosen as."""
        return {why: point for point in self.points for why in point.chosen}

    def _heading(self) -> str:
        return f"{len(self.points)} models measured, {len(self.front)} on the front; {os.path.join(self.folder, 'front.html')}"

    def _shown(self) -> list[Table[Any]]:
        return [self.points, *([self.machines] if len(self.machines) else [])]

    def _repr_html_(self) -> str:
        with open(os.path.join(self.folder, "front.html"), encoding="utf-8") as page:
            text = html.escape(page.read(), quote=True)
        return f'<iframe srcdoc="{text}" style="width:100%;height:46rem;border:0" title="detent search"></iframe>'


def _seconds_of(point: SearchPoint) -> float:
    return point.seconds
