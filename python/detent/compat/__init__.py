"""Runs scripts that were written for other quantizers: only the import changes.

    from detent.compat import CalibrationDataReader, QuantFormat, QuantType, quantize_static     # onnxruntime.quantization
    from detent.compat.quark import Int8Spec, ModelQuantizer, QConfig, QLayerConfig              # quark.onnx

An option that detent does not support is refused by name, never silently ignored: docs/migration.md.
"""

from ._quant_configs import DynamicQuantConfig, StaticQuantConfig, get_qdq_config, get_qnn_qdq_config, quantize
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
    "DynamicQuantConfig",
    "ModelQuantizer",
    "QConfig",
    "QuantFormat",
    "QuantType",
    "StaticQuantConfig",
    "get_qdq_config",
    "get_qnn_qdq_config",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]
