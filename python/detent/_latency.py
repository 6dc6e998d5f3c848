"""How long models run."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

_DOUBTFUL = 0.1  # waiting
_SAME = 0.005  # what two digits of a ratio show


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
    synthetic: bool  #: the samples

    @classmethod
    def of(cls, told: dict[str, Any]) -> Self:
        return cls(**{**told, "before": Latency(**told["before"]), "after": Latency(**told["after"])})

    def __str__(self) -> str:
        if max(self.before.waiting, self.after.waiting) > _DOUBTFUL:
            return "latency not measured: the machine was busy"
        ratio = self.after.ratio
        change = "as fast" if abs(ratio - 1) < _SAME else f"{1 / ratio:.2f}x faster" if ratio < 1 else f"{ratio:.2f}x slower"
        return f"latency {1e3 * self.before.median:.4g} -> {1e3 * self.after.median:.4g} ms ({change})"
