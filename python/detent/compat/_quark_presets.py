"""Quark's configurations by name (get_default_config), as far as detent has their types and methods."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..errors import UsageError
from ._options import Chosen, refuse


@dataclasses.dataclass(frozen=True)
class Preset:
    """What a name of Quark's stands for."""

    activation_type: str
    weight_type: str = "int8"
    activation_symmetric: bool = False
    weight_symmetric: bool = True
    method: str = "Percentile"
    percentile: float = 99.999
    average: bool = False
    power_of_two_scale: bool = False
    op_types: tuple[str, ...] = ()
    target: str = "ort-cpu"
    algorithm: str = ""  #: "ADAROUND" in a name without that suffix

    def options(self) -> Chosen:
        """As QConfig.to_detent() collects them."""
        return {
            "target": self.target,
            "activation_type": self.activation_type,
            "weight_type": self.weight_type,
            "activation_symmetric": self.activation_symmetric,
            "weight_symmetric": self.weight_symmetric,
            "per_channel": False,
            "power_of_two_scale": self.power_of_two_scale,
            "op_types": list(self.op_types),
            "_method": self.method,
            "_percentile": self.percentile,
            "_average": self.average,
        }


_TRANSFORMER = ("Gemm", "MatMul")

PRESETS: dict[str, Preset] = {
    "XINT8": Preset("uint8", activation_symmetric=True, method="MinMSE", power_of_two_scale=True, target="amd-npu:xint8"),
    "S8S8_AAWS": Preset("int8", percentile=99.9999),
    "U8S8_AAWS": Preset("uint8"),
    "U8U8_AAWA": Preset("uint8", "uint8", weight_symmetric=False),
    "S16S8_ASWS": Preset("int16", activation_symmetric=True),
    "U16S8_AAWS": Preset("uint16"),
    "A8W8": Preset("int8", activation_symmetric=True, method="MinMax", target="amd-npu:a8w8"),
    "A16W8": Preset("int16", activation_symmetric=True, method="MinMax", target="amd-npu:a16w8"),
    "INT8_CNN_DEFAULT": Preset("uint8", method="MinMax"),
    "INT16_CNN_DEFAULT": Preset("uint16", "int16", method="MinMax"),
    "INT8_TRANSFORMER_DEFAULT": Preset("uint8", method="MinMax", average=True, op_types=_TRANSFORMER),
    "INT16_TRANSFORMER_DEFAULT": Preset("uint16", "int16", method="MinMax", average=True, op_types=_TRANSFORMER),
    "INT8_CNN_ACCURATE": Preset("uint8", percentile=99.9999, algorithm="ADAROUND"),
    "INT16_CNN_ACCURATE": Preset("uint16", "int16", percentile=99.9999, algorithm="ADAROUND"),
    "INT8_TRANSFORMER_ACCURATE": Preset("uint8", percentile=99.9999, op_types=_TRANSFORMER, algorithm="ADAROUND"),
    "INT16_TRANSFORMER_ACCURATE": Preset("uint16", "int16", percentile=99.9999, op_types=_TRANSFORMER, algorithm="ADAROUND"),
}

FLOATS = {"FP16": "16", "BF16": "bf16"}
DYNAMIC = {"UINT8_DYNAMIC_QUANT": "uint8"}  #: the type of weights

#: Configurations and specs of block floats, and detent's word for each.
BLOCKS = {name.upper(): name for name in "bfp16 mx4 mx6 mx9 mxfp8e5m2 mxfp8e4m3 mxfp6e3m2 mxfp6e2m3 mxfp4e2m1 mxint8".split()}

# Why the others are refused.
_MIXED = "it mixes two formats by Quark's own search"
_REFUSED = {
    "VINT8": "it is for a compiler whose graph conversions detent does not have",
    **dict.fromkeys(("S16S16_MIXED_S8S8", "BF16_MIXED_BFP16", "BF16_MIXED_MXINT8"), _MIXED),
    **dict.fromkeys(("BF16_BFP16", "BF16_MXINT8", "MX9_INT8"), _MIXED),
}


def split(name: str) -> tuple[str, str]:
    """A name without its variant, and the variant: "ADAROUND", "ADAQUANT" or ""."""
    for variant in ("ADAROUND", "ADAQUANT"):
        if name.endswith("_" + variant):
            return name.removesuffix("_" + variant), variant
    return name, ""


def check(name: str) -> None:
    """Raises where there is no such configuration, or where detent does not have it."""
    base, variant = split(name)
    if base in _REFUSED:
        raise refuse(f"the preset '{name}'", _REFUSED[base])
    if base in FLOATS and variant:
        raise refuse(f"the preset '{name}'", "16-bit floats are not fine-tuned: leave out the variant")
    if base in DYNAMIC and variant:
        raise refuse(f"the preset '{name}'", "dynamic quantization is not fine-tuned: leave out the variant")
    if base in BLOCKS and variant:
        raise refuse(f"the preset '{name}'", "block floats are not fine-tuned: leave out the variant")
    if base not in {*PRESETS, *FLOATS, *DYNAMIC, *BLOCKS}:
        known = ", ".join([*PRESETS, *FLOATS, *DYNAMIC, *BLOCKS, "MATMUL_NBITS"])
        raise UsageError(f"Quark has no preset '{name}' that detent knows", f"choose from: {known}")


def parameters(variant: str) -> dict[str, Any]:
    """Of the algorithm of a variant, as Quark's configurations by name have them."""
    return {
        "batch_size": 2,
        "num_iterations": 1000,
        "learning_rate": 0.1 if variant == "ADAROUND" else 1e-5,
        "early_stop": True,
        "fixed_seed": 1705472343,
    }
