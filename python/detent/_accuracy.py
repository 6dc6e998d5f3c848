"""What was measured of roundings, and done about them."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple


class FallbackNode(NamedTuple):
    """A convolution or matrix product that fell back to float or to 16-bit activations."""

    node: str
    error_share: float  #: of the error with every product in integers
    macs_share: float  #: of the model's multiplications


class EqualizedValue(NamedTuple):
    """A value whose channel ranges were equalized."""

    value: str
    error_before: float
    error_after: float


class MethodChoice(NamedTuple):
    """A value whose range comes from another calibration method."""

    value: str
    method: str
    error_before: float
    error_after: float


class Sensitivity(NamedTuple):
    """The error at the model's outputs if this value alone is rounded."""

    value: str
    node: str
    is_weight: bool
    error: float


@dataclasses.dataclass(frozen=True)
class TunedWeights:
    """The effect of gptq if finetune is auto."""

    error_before: float  #: geometric mean over outputs and samples, with everything rounded, weights to the nearest
    error_after: float
    kept: bool  #: False: gptq was not better, and weights are rounded to the nearest
