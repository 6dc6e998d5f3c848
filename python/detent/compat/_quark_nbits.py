"""Quark's UseMatMulNBits: weights alone, in blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._config import Config, WeightsOnly
from ..errors import UsageError
from ._options import Chosen, Taker, default_only, into, not_needed, refuse, take_all

#: Of Quark's configuration "MATMUL_NBITS".
PRESET = {"UseMatMulNBits": True, "MatMulNBitsParams": {"Bits": 4, "GroupSize": 128, "Symmetric": True, "AccuracyLevel": 1}}

# detent's method in the algorithm's place.
_METHODS = {"DEFAULT": "nearest", "HQQ": "search", "GPTQ": "gptq"}


def _algorithm(chosen: Chosen, value: str) -> None:
    if value not in _METHODS:
        raise refuse(f"MatMulNBitsParams(Algorithm={value!r})", "choose from: " + ", ".join(_METHODS))
    chosen["method"] = _METHODS[value]


_PARAMS: dict[str, Taker] = {
    "Bits": into("bits"),
    "GroupSize": into("block_size"),
    "Symmetric": into("_symmetric"),
    "AccuracyLevel": into("accuracy_level"),
    "Algorithm": _algorithm,
}


def _params(chosen: Chosen, value: Mapping[str, Any]) -> None:
    take_all("MatMulNBitsParams", value, _PARAMS, chosen["weights_only"])


def _work_dir(chosen: Chosen, value: Any) -> None:
    chosen["resources"] = {"work_dir": value}


_OPTIONS: dict[str, Taker] = {
    "UseMatMulNBits": not_needed,
    "MatMulNBitsParams": _params,
    "OpTypesToQuantize": into("op_types"),
    "NodesToQuantize": into("nodes"),
    "CalibDataSize": into("max_samples"),
    "TmpDir": _work_dir,
    "UseGPTQ": default_only("UseGPTQ", False, hint="give MatMulNBitsParams the Algorithm 'GPTQ'"),
    # Only constants become blocks, whatever it says.
    "MatMulConstBOnly": not_needed,
    **dict.fromkeys(("PrintSummary", "IgnoreWarnings", "DebugMode", "OptimizeModel", "SimplifyModel"), not_needed),
}


def to_detent(extra_options: Mapping[str, Any], chosen: Chosen) -> Config:
    """`chosen` holds what the rest of the configuration excludes."""
    chosen.update(bench=False, op_types=["MatMul"])
    chosen["weights_only"] = {"bits": 4, "block_size": 128, "accuracy_level": 0, "method": "nearest", "_symmetric": True}
    for name in extra_options:
        if name not in _OPTIONS:
            raise UsageError(f"extra_options['{name}'] means nothing with UseMatMulNBits", "leave it out")
    take_all("extra_options", extra_options, _OPTIONS, chosen)
    blocks = chosen.pop("weights_only")
    # HQQ finds zero points whatever Symmetric says.
    symmetric = blocks.pop("_symmetric") and blocks["method"] != "search"
    return Config.of({**chosen, "weight_symmetric": symmetric, "weights_only": WeightsOnly(**blocks)})
