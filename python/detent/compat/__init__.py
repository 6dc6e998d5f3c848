"""Runs scripts that were written for other quantizers: only the import changes.

    from detent.compat import CalibrationDataReader, QuantFormat, QuantType, quantize_static     # onnxruntime.quantization
    from detent.compat.quark import Int8Spec, ModelQuantizer, QConfig, QLayerConfig              # quark.onnx

An option that detent does not support is refused by name, never silently ignored: docs/migration.md.
"""

from typing import Any

from ._options import absent
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
from .shape_inference import quant_pre_process

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
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]

# Names of onnxruntime.quantization that have no counterpart, and what to do instead.
_CALIBRATION = "detent.calibrate() writes statistics, and detent.quantize(statistics=...) takes them"
_ABSENT = {
    **dict.fromkeys(
        "CalibraterBase MinMaxCalibrater TensorData TensorsData create_calibrator load_tensors_data save_tensors_data "
        "write_calibration_table".split(),
        _CALIBRATION,
    ),
    **dict.fromkeys("CudaQuantizer QDQQuantizer".split(), "quantize_static() takes a model to another"),
    "QuantizationMode": "quantize_dynamic() gives integer operators, quantize_static() Q/DQ or QLinear operators",
}


def __getattr__(name: str) -> Any:
    return absent("onnxruntime.quantization", name, _ABSENT)
