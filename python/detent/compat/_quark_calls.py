"""Quark's quantize_static and quantize_dynamic: those of ONNX Runtime with more arguments."""

from __future__ import annotations

import os
from typing import Any

from .._models import Model
from ..errors import UsageError
from . import onnxruntime
from ._options import refuse
from ._quark_profiler import active

# What detent does, or does without being asked.
_FIXED: dict[str, tuple[Any, ...]] = {
    "input_nodes": ([], None),
    "output_nodes": ([], None),
    "extra_op_types_to_quantize": ([], None),
    "subgraphs_to_exclude": ([], None),
    "execution_providers": (["CPUExecutionProvider"], None, []),
    **dict.fromkeys(
        "enable_dpu enable_npu_cnn enable_npu_transformer specific_tensor_precision convert_fp16_to_fp32 "
        "convert_nchw_to_nhwc crypto_mode include_sq include_rotation include_fast_ft include_auto_mp".split(),
        (False,),
    ),
    **dict.fromkeys("optimize_model debug_mode print_summary include_cle".split(), (True, False)),
}
_INSTEAD = {
    "enable_npu_cnn": "give ModelQuantizer a QConfig with XInt8Spec()",
    "include_fast_ft": "give ModelQuantizer a QConfig with algo_config",
    "extra_op_types_to_quantize": "op_types_to_quantize names all types",
    "subgraphs_to_exclude": "name the nodes in nodes_to_exclude",
}


def _check(function: str, more: dict[str, Any]) -> None:
    for name, value in more.items():
        if name not in _FIXED:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
        if value not in _FIXED[name]:
            raise refuse(f"{name}={value!r}", _INSTEAD.get(name, "leave it out"))


def quantize_static(
    model_input: Model,
    model_output: str | os.PathLike[str] | None = None,
    calibration_data_reader: Any = None,
    calibration_data_path: str | None = None,
    quant_format: Any = onnxruntime.QuantFormat.QDQ,
    calibrate_method: Any = onnxruntime.CalibrationMethod.MinMax,
    op_types_to_quantize: list[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: Any = onnxruntime.QuantType.QInt8,
    weight_type: Any = onnxruntime.QuantType.QInt8,
    nodes_to_quantize: list[str] | None = None,
    nodes_to_exclude: list[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: dict[str, Any] | None = None,
    **more: Any,
) -> None:
    """Quantize a model as quark.onnx.quantize_static does, with its names and defaults. calibration_data_path is a folder
    of samples, read where no reader is given."""
    _check("quantize_static", more)
    if model_output is None:
        raise UsageError("quantize_static has no model_output", "give it a path, or use ModelQuantizer")
    onnxruntime.quantize_static(
        model_input,
        model_output,
        calibration_data_path if calibration_data_reader is None else calibration_data_reader,
        quant_format,
        op_types_to_quantize,
        per_channel,
        reduce_range,
        activation_type,
        weight_type,
        nodes_to_quantize,
        nodes_to_exclude,
        use_external_data_format,
        calibrate_method,
        extra_options=extra_options,
        _profile=active(),
    )


def quantize_dynamic(
    model_input: Model,
    model_output: str | os.PathLike[str] | None = None,
    op_types_to_quantize: list[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: Any = onnxruntime.QuantType.QInt8,
    nodes_to_quantize: list[str] | None = None,
    nodes_to_exclude: list[str] | None = None,
    subgraphs_to_exclude: list[Any] | None = None,
    use_external_data_format: bool = False,
    extra_options: dict[str, Any] | None = None,
    **more: Any,
) -> None:
    """Quantize a model as quark.onnx.quantize_dynamic does, with its names and defaults."""
    _check("quantize_dynamic", {"subgraphs_to_exclude": subgraphs_to_exclude or [], **more})
    if model_output is None:
        raise UsageError("quantize_dynamic has no model_output", "give it a path")
    onnxruntime.quantize_dynamic(
        model_input,
        model_output,
        op_types_to_quantize,
        per_channel,
        reduce_range,
        weight_type,
        nodes_to_quantize,
        nodes_to_exclude,
        use_external_data_format,
        extra_options,
        _profile=active(),
    )
