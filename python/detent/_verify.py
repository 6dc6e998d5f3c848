"""What verify() returns."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self

from ._fidelity import Fidelity
from ._latency import Latency
from ._results import _Result
from ._tables import Column, Table, count, fixed, number, percent


class VerifiedOutput(NamedTuple):
    """An output beside that of the float model."""

    name: str
    reference: Fidelity  #: exact arithmetic on the model's integers
    deployed: Fidelity  #: the consumer
    consumer_sqnr_db: float  #: of the consumer beside the reference


class VerifiedLayer(NamedTuple):
    """A value that the consumer made of exactly what the reference made it of."""

    name: str
    made_by: str
    quantized: bool
    elements: int
    max_steps: float  #: of the value's own scale; of floats, of 1/255 of the largest magnitude
    share: float  #: of the elements that differ
    share_over_one: float  #: by more than one step
    exact: bool  #: False: an operator of the reference ran in float32
    reason: str


class Consumer(Protocol):
    """A runtime that verify() can run models in."""

    name: str

    def load(self, model: os.PathLike[str], /) -> Callable[[list[Any]], Sequence[Any]] | None: ...


def _sqnr(fidelity: Fidelity) -> str:
    return f"{fidelity.sqnr_db:.2f}"


_OUTPUTS = (
    Column("output", "name"),
    Column("exact", "reference", _sqnr),
    Column("deployed", "deployed", _sqnr),
    Column("between, dB", "consumer_sqnr_db", fixed(2)),
)
_LAYERS = (
    Column("layer", "name"),
    Column("made by", "made_by"),
    Column("elements", "elements", count),
    Column("max steps", "max_steps", number),
    Column("differ", "share", percent),
    Column("> 1 step", "share_over_one", percent),
    Column("reason", "reason"),
)


@dataclasses.dataclass(eq=False, repr=False)
class Verification(_Result):
    """What a runtime makes of a quantized model; worst layers first."""

    target: str
    target_reason: str  #: of target="auto": the execution provider that it was chosen by
    consumer: str
    samples: int
    outputs: Table[VerifiedOutput]
    layers: Table[VerifiedLayer]
    max_steps: float  #: of all layers
    latency: list[Latency]  #: of the float and the quantized model; empty: not measured
    notes: list[str]

    @classmethod
    def of(cls, told: dict[str, Any], **more: Any) -> Self:
        outputs = [
            VerifiedOutput(
                entry["deployed"]["name"],
                Fidelity(**entry["reference"]),
                Fidelity(**entry["deployed"]),
                entry["consumer_sqnr_db"],
            )
            for entry in told["outputs"]
        ]
        layers = [VerifiedLayer(**entry) for entry in told["layers"]]
        latency = [Latency(**entry) for entry in told["latency"]]
        values = {"outputs": Table(outputs, _OUTPUTS), "layers": Table(layers, _LAYERS), "latency": latency}
        return cls(**{**told, **values, **more})

    def _heading(self) -> str:
        agree = sum(layer.share == 0 for layer in self.layers)
        return f"{agree} of {len(self.layers)} layers agree in {self.consumer}, on {self.samples} samples"

    def _shown(self) -> list[Table[Any]]:
        return [self.outputs, self.layers]
