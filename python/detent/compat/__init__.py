"""Scripts written for other quantizers, run by detent: a script changes its import and nothing else.

    from detent.compat import CalibrationDataReader, QuantFormat, QuantType, quantize_static     # onnxruntime.quantization
    from detent.compat.quark import Int8Spec, ModelQuantizer, QConfig, QLayerConfig              # quark.onnx

What detent does not do is refused by its name, never left out in silence: docs/migration.md.
"""

from .onnxruntime import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from .quark import ModelQuantizer, QConfig

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "ModelQuantizer",
    "QConfig",
    "QuantFormat",
    "QuantType",
    "quantize_dynamic",
    "quantize_static",
]
