"""What became of weights."""

from __future__ import annotations

from typing import NamedTuple

from ._tables import Column, count, fixed, number


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
TUNED = (
    Column("layer", "name"),
    Column("type", "op_type"),
    Column("nearest", "error_before", number),
    Column("tuned", "error_after", number),
    Column("seconds", "seconds", fixed(2)),
)
