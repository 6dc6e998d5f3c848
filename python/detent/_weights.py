"""What became of weights."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from ._tables import Column, Table, count, fixed, number, size


class BlockedWeight(NamedTuple):
    """A weight that is stored in blocks."""

    name: str
    node: str  #: the first that reads it
    op_type: str
    bits: int
    block_size: int  #: 0: a whole column
    rows: int  #: along which blocks lie
    columns: int
    method: str  #: that found its integers
    sqnr_db: float  #: of its values
    output_error: float | None  #: of the product on the samples, as a share; None without samples
    dense_error: float | None  #: the same without sparsity; None where weights are dense
    input_exponent: float | None  #: of AWQ, that the product's inputs are scaled with; None: they are not


class MeasuredSize(NamedTuple):
    """A model that was written on the way to an accuracy target, and the metric that was measured of it."""

    size: int
    value: float


class PlannedWeight(NamedTuple):
    """What max_size or an accuracy target came to for a weight."""

    name: str
    node: str  #: the first that reads it
    bits: int  #: 0: it stays in float
    bytes: int
    error: float  #: that is expected; see BitsPlan


@dataclasses.dataclass(frozen=True)
class BitsPlan:
    """The choice of bits under max_size, or for an accuracy target."""

    max_size: int  #: for a target, that with which it was reached
    size: int  #: that is expected, of model and data file
    error: float  #: that is expected: with samples of the worst output, as a share; without, the sum of the weights' shares
    weights: Table[PlannedWeight]
    reached: float | None  #: of the metric; None without a target
    tried: list[MeasuredSize]

    @classmethod
    def of(cls, told: dict[str, Any]) -> BitsPlan:
        rows = Table([PlannedWeight(**entry) for entry in told["weights"]], PLANNED)
        tried = [MeasuredSize(**entry) for entry in told["tried"]]
        return cls(**{**told, "weights": rows, "tried": tried})


@dataclasses.dataclass(frozen=True)
class RotatedStream:
    """What rotating the residual stream came to. Errors of the worst output, as shares, with the weights in blocks."""

    error_before: float  #: without
    error_after: float  #: with it
    kept: bool


class KvScales(NamedTuple):
    """Scales of one layer's cache: one, or one for each channel of each head."""

    layer: int
    keys: list[float]
    values: list[float]


class FloatConversion(NamedTuple):
    """What became 16-bit floats."""

    nodes: int  #: that compute in 16 bits
    nodes_kept: int  #: with float32 values, that stay
    casts: int  #: added
    constants: float  #: share of the bytes of float32 constants that were converted


class TunedLayer(NamedTuple):
    """The result of fine-tuning a layer. Errors are mean squares over its output."""

    name: str
    op_type: str
    streamed: bool  #: solved in mini-batches
    tuned: bool  #: False: nearest rounding was better on the held-back samples
    error_before: float
    error_after: float
    seconds: float


BLOCKED = (
    Column("weight", "name"),
    Column("node", "node"),
    Column("bits", "bits", count),
    Column("method", "method"),
    Column("SQNR dB", "sqnr_db", fixed(2)),
)
PLANNED = (
    Column("weight", "name"),
    Column("node", "node"),
    Column("bits", "bits", count),
    Column("bytes", "bytes", size),
    Column("error", "error", number),
)
TUNED = (
    Column("layer", "name"),
    Column("type", "op_type"),
    Column("nearest", "error_before", number),
    Column("tuned", "error_after", number),
    Column("seconds", "seconds", fixed(2)),
)
