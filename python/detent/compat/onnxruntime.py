"""quantize_static and quantize_dynamic of onnxruntime.quantization, implemented by detent. docs/migration.md lists the
differences."""

from __future__ import annotations

import abc
import enum
import os
from typing import Any

from .. import _api
from .._config import Config, Entropy, Method, MinMax, Percentile
from .._models import Model
from .._profiler import Profiler
from ..errors import UsageError
from ._options import Chosen, Taker, default_only, into, name_of, not_needed, refuse, take_all, take_overrides


class QuantType(enum.Enum):
    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def from_string(t: str) -> QuantType:
        try:
            return QuantType[t]
        except KeyError:
            raise ValueError(f"'{t}' is not a QuantType") from None


class QuantFormat(enum.Enum):
    QOperator = 0
    QDQ = 1

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def from_string(format: str) -> QuantFormat:
        try:
            return QuantFormat[format]
        except KeyError:
            raise ValueError(f"'{format}' is not a QuantFormat") from None


class CalibrationMethod(enum.Enum):
    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class CalibrationDataReader(abc.ABC):
    """Yields samples: get_next() returns a dict of arrays, or None after the last. rewind() is needed where samples are
    read twice."""

    @classmethod
    def __subclasshook__(cls, subclass: type) -> Any:
        return callable(getattr(subclass, "get_next", None)) or NotImplemented

    @abc.abstractmethod
    def get_next(self) -> dict[str, Any] | None: ...

    def __iter__(self) -> CalibrationDataReader:
        return self

    def __next__(self) -> dict[str, Any]:
        result = self.get_next()
        if result is None:
            raise StopIteration
        return result


_TYPES = {
    "QInt8": "int8",
    "QUInt8": "uint8",
    "QInt16": "int16",
    "QUInt16": "uint16",
    "QInt4": "int4",
    "QUInt4": "uint4",
}


def type_of(value: Any, what: str) -> str:
    name = name_of(value)
    if name not in _TYPES:
        raise refuse(f"{what}={name}", "choose from: " + ", ".join(_TYPES))
    return _TYPES[name]


def _contrib_operators(chosen: Chosen, value: Any) -> None:
    # Asked for where a type is not in ONNX's own operators yet, which is where detent uses them too.
    narrow = {"int8", "uint8"}
    if value and {chosen["activation_type"], chosen["weight_type"]} <= narrow:
        raise refuse("UseQDQContribOps=True with 8-bit types", "leave it out: ONNX's own operators have these types")


_MODEL_WIDE = "detent decides it by the model"
EXTRA_OPTIONS: dict[str, Taker] = {
    "ActivationSymmetric": into("activation_symmetric"),
    "WeightSymmetric": into("weight_symmetric"),
    "TensorQuantOverrides": take_overrides,
    "CalibTensorRangeSymmetric": into("_symmetric_range"),
    "CalibMovingAverage": into("_average"),
    "CalibMovingAverageConstant": default_only(
        "CalibMovingAverageConstant", 0.01, hint="CalibMovingAverage gives the plain mean over samples"
    ),
    "CalibPercentile": into("_percentile"),
    "CalibStridedMinMax": into("_strided"),
    "CalibMaxIntermediateOutputs": into("_strided"),
    "DefaultTensorType": not_needed,
    "UseQDQContribOps": _contrib_operators,
    "ActivationRestrictedAsymmetric": default_only("ActivationRestrictedAsymmetric", False),
    "AddQDQPairToWeight": default_only("AddQDQPairToWeight", False),
    "BlockSize": default_only("BlockSize", 0),
    "DedicatedQDQPair": default_only("DedicatedQDQPair", False),
    "EnableSubgraph": default_only("EnableSubgraph", False, hint="bodies of If, Loop and Scan stay in float"),
    "ForceQuantizeNoInputCheck": default_only("ForceQuantizeNoInputCheck", False),
    "MatMulConstBOnly": default_only(
        "MatMulConstBOnly", False, hint="name the MatMul nodes that multiply activations in nodes_to_exclude"
    ),
    "MinimumRealRange": default_only("MinimumRealRange", None),
    "OpTypesToExcludeOutputQuantization": default_only("OpTypesToExcludeOutputQuantization", [], None),
    "QDQDisableWeightAdjustForInt32Bias": default_only("QDQDisableWeightAdjustForInt32Bias", False),
    "QDQKeepRemovableActivations": default_only("QDQKeepRemovableActivations", False),
    "QDQOpTypePerChannelSupportToAxis": default_only("QDQOpTypePerChannelSupportToAxis", {}, hint=_MODEL_WIDE),
    "QuantizeBias": default_only("QuantizeBias", True),
    "SmoothQuant": default_only("SmoothQuant", False),
    "SmoothQuantAlpha": default_only("SmoothQuantAlpha", 0.5),
    "SmoothQuantFolding": default_only("SmoothQuantFolding", True),
    "extra.Sigmoid.nnapi": default_only("extra.Sigmoid.nnapi", False),
}


def _method(value: Any, chosen: Chosen) -> Method:
    name = name_of(value)
    symmetric = chosen.pop("_symmetric_range", None)
    average, strided = bool(chosen.pop("_average", False)), chosen.pop("_strided", None)
    percentile = chosen.pop("_percentile", None)
    if average and name != "MinMax":
        raise UsageError(f"CalibMovingAverage cannot be combined with CalibrationMethod.{name}", "leave it out")
    if average and strided is not None:  # then ONNX Runtime weighs later samples less; without, neither changes a result
        raise refuse("CalibMovingAverage with CalibStridedMinMax or CalibMaxIntermediateOutputs", "leave those out")
    if percentile is not None and name != "Percentile":
        raise UsageError(f"CalibPercentile cannot be combined with CalibrationMethod.{name}", "leave it out")
    if name == "MinMax":
        if symmetric:
            raise refuse("CalibTensorRangeSymmetric=True with MinMax", "give ActivationSymmetric")
        return MinMax(average=average)
    if name == "Percentile":
        return Percentile(percentile=99.999 if percentile is None else float(percentile), two_sided=symmetric is False)
    if name == "Entropy":
        return Entropy()  # its range is symmetric to begin with
    raise refuse(f"calibrate_method={name}", "choose from: MinMax, Percentile, Entropy")


def quantize_static(
    model_input: Model,
    model_output: str | os.PathLike[str],
    calibration_data_reader: Any = None,
    quant_format: Any = QuantFormat.QDQ,
    op_types_to_quantize: list[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: Any = QuantType.QInt8,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: list[str] | None = None,
    nodes_to_exclude: list[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: Any = CalibrationMethod.MinMax,
    calibration_providers: list[str] | None = None,
    extra_options: dict[str, Any] | None = None,
    calibration_cache_path: str | os.PathLike[str] | None = None,
    *,
    target: str = "ort-cpu",
    _profile: Profiler | None = None,
) -> None:
    """Quantize a model as onnxruntime.quantization.quantize_static does, with its arguments and defaults. target: detent's
    own."""
    if calibration_cache_path is not None:
        raise refuse("calibration_cache_path", "detent.calibrate() writes statistics that detent.quantize() takes")
    if calibration_data_reader is None:
        raise UsageError("there is no calibration_data_reader", "give one with get_next()")
    if calibration_providers not in (None, [], ["CPUExecutionProvider"]):
        raise refuse(f"calibration_providers={calibration_providers}", "detent calibrates on the CPU")
    chosen: Chosen = {
        "preset": "plain",
        "target": target,
        "bench": False,
        "quant_format": name_of(quant_format).lower(),
        "op_types": op_types_to_quantize or (),
        "per_channel": per_channel,
        "weight_range": "reduced" if reduce_range else "full",
        "activation_type": type_of(activation_type, "activation_type"),
        "weight_type": type_of(weight_type, "weight_type"),
        "nodes": nodes_to_quantize or (),
        "exclude_nodes": nodes_to_exclude or (),
    }
    take_all("extra_options", extra_options or {}, EXTRA_OPTIONS, chosen)
    chosen["method"] = _method(calibrate_method, chosen)
    _api.quantize(
        model_input,
        model_output,
        calibration_data_reader,
        Config.of(chosen),
        external_data_threshold=1024 if use_external_data_format else None,
        profile=_profile,
    )


def _matmul_const_only(chosen: Chosen, value: Any) -> None:
    if not value:
        raise refuse("MatMulConstBOnly=False", "products of two activations stay in float: they are not faster so")


DYNAMIC_OPTIONS: dict[str, Taker] = {
    "MatMulConstBOnly": _matmul_const_only,
    "ActivationSymmetric": default_only("ActivationSymmetric", False, hint="DynamicQuantizeLinear has zero points"),
    **{
        name: EXTRA_OPTIONS[name]
        for name in ("WeightSymmetric", "DefaultTensorType", "EnableSubgraph", "ForceQuantizeNoInputCheck")
    },
}


def quantize_dynamic(
    model_input: Model,
    model_output: str | os.PathLike[str],
    op_types_to_quantize: list[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: list[str] | None = None,
    nodes_to_exclude: list[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: dict[str, Any] | None = None,
    *,
    _profile: Profiler | None = None,
) -> None:
    """Quantize a model as onnxruntime.quantization.quantize_dynamic does, with its arguments and defaults. A Conv is
    quantized only where op_types_to_quantize names it, and tables get a scale for each row."""
    chosen: Chosen = {
        "preset": "plain",
        "bench": False,
        "activations": "dynamic",
        "op_types": op_types_to_quantize or (),
        "per_channel": per_channel,
        "weight_range": "reduced" if reduce_range else "full",
        "weight_type": type_of(weight_type, "weight_type"),
        "nodes": nodes_to_quantize or (),
        "exclude_nodes": nodes_to_exclude or (),
    }
    take_all("extra_options", extra_options or {}, DYNAMIC_OPTIONS, chosen)
    _api.quantize(
        model_input,
        model_output,
        config=Config.of(chosen),
        external_data_threshold=1024 if use_external_data_format else None,
        profile=_profile,
    )
