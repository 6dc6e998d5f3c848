"""What a comparison tells of values, and of the next token."""

from __future__ import annotations

from typing import NamedTuple

from ._tables import percent


class Fidelity(NamedTuple):
    """The difference between a quantized value and the float one, over all samples."""

    name: str
    made_by: str
    sqnr_db: float
    cosine: float
    max_abs: float
    worst_sample_db: float | None  #: of outputs: SQNR of the sample that is farthest
    reason: str  #: for inner values: the likely reason; empty if there is no clear one
    suggestion: str  #: the option that helps


class NextTokens(NamedTuple):
    """What a decoder and its quantized form, as deployed, make of text, over all positions with a known next token."""

    positions: int
    float_perplexity: float
    perplexity: float  #: of the quantized model
    agreement: float  #: share of positions at which both find the same token the likeliest
    kl_divergence: float  #: mean of sum p ln(p/q), in nats; p: float model, q: quantized model

    def __str__(self) -> str:
        return (
            f"perplexity {self.float_perplexity:.4f} -> {self.perplexity:.4f}, the same next token at "
            f"{percent(self.agreement)} of {self.positions} positions"
        )
