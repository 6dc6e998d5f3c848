"""What Quark's description of a layer means."""

from __future__ import annotations

from ..errors import UsageError
from ._options import Chosen, differs, name_of, refuse
from ._quark_specs import QLayerConfig, QTensorConfig

_TYPES = {"Int8": "int8", "UInt8": "uint8", "Int16": "int16", "UInt16": "uint16"}


def data_type_name(spec: QTensorConfig) -> str:
    data_type = spec.data_type
    return data_type if isinstance(data_type, str) else getattr(data_type, "__name__", type(data_type).__name__)


def _data_type(spec: QTensorConfig, what: str) -> str:
    name = data_type_name(spec)
    if name not in _TYPES:
        raise refuse(f"{name} for {what}", "choose from: " + ", ".join(_TYPES))
    return _TYPES[name]


def take_specs(layer: QLayerConfig, chosen: Chosen) -> None:
    if layer.input_tensors is not None and layer.activation is not None:
        raise UsageError("QLayerConfig has both input_tensors and activation", "give input_tensors")
    activation, weight = layer.input_tensors or layer.activation, layer.weight
    if activation is None or weight is None:
        raise UsageError("QLayerConfig needs input_tensors and weight")
    if layer.output_tensors is not None and layer.output_tensors != activation:
        raise refuse("output_tensors that differ from input_tensors", "leave them out")
    if layer.bias is not None and name_of(layer.bias.data_type) != "Int32":
        raise refuse(f"a bias of {name_of(layer.bias.data_type)}", "leave it out: a bias is int32")
    if name_of(activation.quant_granularity) != "Tensor":
        raise refuse("granularity of activations other than Tensor")
    if name_of(weight.quant_granularity) == "Group":
        raise refuse("QuantGranularity.Group", "choose from: Tensor, Channel")
    scales = {name_of(activation.scale_type), name_of(weight.scale_type)}
    if "Int16" in scales:
        raise refuse("ScaleType.Int16", "choose from: Float32, PowerOf2")
    if len(scales) > 1:
        raise refuse("another scale type for weights than for activations", "give both the same")
    if name_of(weight.calibration_method) == "MinMSE":
        if scales != {"PowerOf2"}:
            raise refuse("CalibMethod.MinMSE for weights", "give the weight's spec calibration_method=CalibMethod.MinMax")
        differs("CalibMethod.MinMSE for weights", "detent takes the power of two that holds the largest weight")
    chosen.update(
        activation_type=_data_type(activation, "activations"),
        weight_type=_data_type(weight, "weights"),
        activation_symmetric=activation.symmetric,
        weight_symmetric=weight.symmetric,
        per_channel=name_of(weight.quant_granularity) == "Channel",
        power_of_two_scale=scales == {"PowerOf2"},
        _method=name_of(activation.calibration_method),
    )
