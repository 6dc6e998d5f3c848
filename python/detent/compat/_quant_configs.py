"""quantize() of onnxruntime.quantization with the configurations of get_qdq_config and get_qnn_qdq_config."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from .._models import Model
from ..errors import UsageError
from ._options import refuse
from .float16 import _proto
from .onnxruntime import CalibrationMethod, QuantFormat, QuantType, quantize_dynamic, quantize_static, type_of

if TYPE_CHECKING:
    import onnx

Exclusion: TypeAlias = "list[str] | Callable[[onnx.ModelProto, onnx.NodeProto], bool] | None"


@dataclasses.dataclass(eq=False)
class StaticQuantConfig:
    """The arguments of quantize_static."""

    calibration_data_reader: Any
    calibrate_method: Any = CalibrationMethod.MinMax
    quant_format: Any = QuantFormat.QDQ
    activation_type: Any = QuantType.QInt8
    weight_type: Any = QuantType.QInt8
    op_types_to_quantize: list[str] | None = None
    nodes_to_quantize: list[str] | None = None
    nodes_to_exclude: list[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    calibration_providers: list[str] | None = None
    extra_options: dict[str, Any] | None = None
    target: str = "ort-cpu"  #: detent's own


@dataclasses.dataclass(eq=False)
class DynamicQuantConfig:
    """The arguments of quantize_dynamic."""

    weight_type: Any = QuantType.QInt8
    op_types_to_quantize: list[str] | None = None
    nodes_to_quantize: list[str] | None = None
    nodes_to_exclude: list[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    extra_options: dict[str, Any] | None = None


def quantize(model_input: Model, model_output: str | os.PathLike[str], quant_config: Any) -> None:
    """Quantize a model as the configuration says; ONNX Runtime's own configurations are taken as well."""
    kind = type(quant_config).__name__
    if kind not in ("StaticQuantConfig", "DynamicQuantConfig"):
        raise UsageError(f"quantize() has a configuration of type {kind}", "give a StaticQuantConfig or a DynamicQuantConfig")
    arguments = dict(vars(quant_config))
    if kind == "StaticQuantConfig":
        quantize_static(model_input, model_output, **arguments)
        return
    for name in set(arguments) - set(vars(DynamicQuantConfig())):  # ONNX Runtime's has what only static models use
        del arguments[name]
    quantize_dynamic(model_input, model_output, **arguments)


_CALIBRATION = {
    "symmetric": "CalibTensorRangeSymmetric",
    "moving_average": "CalibMovingAverage",
    "averaging_constant": "CalibMovingAverageConstant",
    "max_intermediate_outputs": "CalibMaxIntermediateOutputs",
    "percentile": "CalibPercentile",
}
_NEVER = {"Cast", "DequantizeLinear", "QuantizeLinear"}


def _op_types(model: onnx.ModelProto, excluded: set[str]) -> list[str]:
    return sorted({node.op_type for node in model.graph.node if node.name not in excluded} - _NEVER)


def get_qdq_config(
    model_input: Model,
    calibration_data_reader: Any,
    calibrate_method: Any = CalibrationMethod.MinMax,
    calibrate_args: dict[str, Any] | None = None,
    activation_type: Any = QuantType.QUInt8,
    weight_type: Any = QuantType.QInt8,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    keep_removable_activations: bool = False,
    min_real_range: float | None = None,
    tensor_quant_overrides: dict[str, list[dict[str, Any]]] | None = None,
    calibration_providers: list[str] | None = None,
    op_types_to_quantize: list[str] | None = None,
    nodes_to_exclude: Exclusion = None,
    extra_options: dict[str, Any] | None = None,
) -> StaticQuantConfig:
    """A configuration that quantizes all operators of the model, with the arguments of ONNX Runtime's function."""
    model = _proto(model_input)
    if callable(nodes_to_exclude):
        excluded = [node.name for node in model.graph.node if nodes_to_exclude(model, node)]
    else:
        excluded = list(nodes_to_exclude or ())
    options: dict[str, Any] = {"ActivationSymmetric": activation_symmetric, "MinimumRealRange": min_real_range}
    if weight_symmetric is not None:
        options["WeightSymmetric"] = weight_symmetric
    if keep_removable_activations:
        options["QDQKeepRemovableActivations"] = True
    if tensor_quant_overrides:
        options["TensorQuantOverrides"] = tensor_quant_overrides
    for name, value in (calibrate_args or {}).items():
        if name not in _CALIBRATION:
            raise UsageError(f"calibrate_args has no '{name}'", "choose from: " + ", ".join(_CALIBRATION))
        options[_CALIBRATION[name]] = value
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method,
        activation_type=activation_type,
        weight_type=weight_type,
        op_types_to_quantize=op_types_to_quantize or _op_types(model, set(excluded)),
        nodes_to_exclude=excluded,
        per_channel=per_channel,
        reduce_range=reduce_range,
        calibration_providers=calibration_providers,
        extra_options={**options, **(extra_options or {})},
    )


def get_qnn_qdq_config(
    model_input: Model,
    calibration_data_reader: Any,
    calibrate_method: Any = CalibrationMethod.MinMax,
    activation_type: Any = QuantType.QUInt8,
    weight_type: Any = QuantType.QUInt8,
    per_channel: bool = False,
    init_overrides: dict[str, list[dict[str, Any]]] | None = None,
    add_qtype_converts: bool = True,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    keep_removable_activations: bool = False,
    stride: int | None = None,
    calibration_providers: list[str] | None = None,
    op_types_to_quantize: list[str] | None = None,
    nodes_to_exclude: list[str] | None = None,
) -> StaticQuantConfig:
    """A configuration for Qualcomm's HTP, with the arguments of ONNX Runtime's function: detent's target qnn."""
    if stride is not None:
        raise refuse(f"stride={stride}", "leave it out")
    config = get_qdq_config(
        model_input,
        calibration_data_reader,
        calibrate_method,
        activation_type=activation_type,
        weight_type=weight_type,
        activation_symmetric=activation_symmetric,
        weight_symmetric=weight_symmetric,
        per_channel=per_channel,
        keep_removable_activations=keep_removable_activations,
        tensor_quant_overrides=init_overrides,
        calibration_providers=calibration_providers,
        op_types_to_quantize=op_types_to_quantize,
        nodes_to_exclude=nodes_to_exclude,
    )
    config.target = "qnn:a16" if "16" in type_of(activation_type, "activation_type") else "qnn"
    return config
