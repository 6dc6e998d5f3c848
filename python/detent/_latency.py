"""How long models run."""

from __future__ import annotations

from typing import Any, NamedTuple, Self


class Latency(NamedTuple):
    """Seconds of a model's runs, which took turns with those of other models."""

    runs: int
    min: float
    median: float
    p90: float
    cpu: float  #: median of the processor time of all threads
    ratio: float  #: to the first model (before quantization)
    ratio_low: float  #: quartiles of the ratio over turns
    ratio_high: float
    cpu_ratio: float
    waiting: float  #: share of the time in which runs waited for a processor that other programs had


class LatencyChange(NamedTuple):
    """The float model's latency and the result's, side by side in ONNX Runtime."""

    before: Latency
    after: Latency
    threads: int
    samples: int
    made_up: bool  #: the samples

    @classmethod
    def of(cls, told: dict[str, Any]) -> Self:
        return cls(**{**told, "before": Latency(**told["before"]), "after": Latency(**told["after"])})
