"""AMD Quark's descriptions of how tensors are quantized, under its names."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any


class CalibMethod(enum.Enum):
    MinMax = 0
    MinMSE = 1
    Percentile = 2
    Entropy = 3
    LayerwisePercentile = 4
    Distribution = 5


class ScaleType(enum.Enum):
    Float32 = 0
    PowerOf2 = 1
    Int16 = 2


class QuantGranularity(enum.Enum):
    Tensor = 0
    Channel = 1
    Group = 2


@dataclasses.dataclass
class QTensorConfig:
    """How tensors of a kind are quantized."""

    symmetric: bool
    scale_type: Any
    calibration_method: Any
    quant_granularity: Any
    data_type: Any

    def set_symmetric(self, symmetric: bool) -> None:
        self.symmetric = symmetric

    def set_scale_type(self, scale_type: ScaleType) -> None:
        self.scale_type = scale_type

    def set_calibration_method(self, calibration_method: CalibMethod) -> None:
        self.calibration_method = calibration_method

    def set_quant_granularity(self, quant_granularity: QuantGranularity) -> None:
        self.quant_granularity = quant_granularity

    def set_data_type(self, data_type: Any) -> None:
        self.data_type = data_type


class _Spec(QTensorConfig):
    _symmetric, _scale_type, _calibration_method, _data_type = True, ScaleType.Float32, CalibMethod.Percentile, ""

    def __init__(
        self,
        symmetric: bool | None = None,
        scale_type: ScaleType | None = None,
        calibration_method: CalibMethod | None = None,
        quant_granularity: QuantGranularity = QuantGranularity.Tensor,
        data_type: Any = None,
    ) -> None:
        super().__init__(
            self._symmetric if symmetric is None else symmetric,
            scale_type or self._scale_type,
            calibration_method or self._calibration_method,
            quant_granularity,
            data_type or self._data_type,
        )


class Int8Spec(_Spec):
    _data_type = "Int8"


class UInt8Spec(_Spec):
    _symmetric, _data_type = False, "UInt8"


class Int16Spec(_Spec):
    _data_type = "Int16"


class UInt16Spec(_Spec):
    _symmetric, _data_type = False, "UInt16"


class XInt8Spec(Int8Spec):
    """int8 with power-of-two scales. As the weight's spec it needs calibration_method=CalibMethod.MinMax."""

    _scale_type, _calibration_method = ScaleType.PowerOf2, CalibMethod.MinMSE


class _BlockSpec(_Spec):
    """Of block floats: the same for activations and weights."""

    _calibration_method = CalibMethod.MinMax


class BFP16Spec(_BlockSpec):
    _data_type = "BFP16"


class MX4Spec(_BlockSpec):
    _data_type = "MX4"


class MX6Spec(_BlockSpec):
    _data_type = "MX6"


class MX9Spec(_BlockSpec):
    _data_type = "MX9"


class MXFP8E5M2Spec(_BlockSpec):
    _data_type = "MXFP8E5M2"


class MXFP8E4M3Spec(_BlockSpec):
    _data_type = "MXFP8E4M3"


class MXFP6E3M2Spec(_BlockSpec):
    _data_type = "MXFP6E3M2"


class MXFP6E2M3Spec(_BlockSpec):
    _data_type = "MXFP6E2M3"


class MXFP4E2M1Spec(_BlockSpec):
    _data_type = "MXFP4E2M1"


class MXInt8Spec(_BlockSpec):
    _data_type = "MXInt8"


class Int32Spec(_Spec):
    """For a bias, which is int32 anyway."""

    _data_type = "Int32"


@dataclasses.dataclass(eq=False)
class QLayerConfig:
    """How layers are quantized. `activation` is the older name of `input_tensors`."""

    input_tensors: QTensorConfig | None = None
    activation: QTensorConfig | None = None
    weight: QTensorConfig | None = None
    bias: QTensorConfig | None = None
    output_tensors: QTensorConfig | None = None
