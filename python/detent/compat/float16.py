"""convert_float_to_float16 of onnxruntime.transformers.float16 and onnxconverter_common.float16, implemented by detent.
docs/migration.md lists the differences."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .. import _api
from .._config import Config
from .._models import Model
from ._options import refuse

if TYPE_CHECKING:
    import onnx


def _proto(model: Model) -> onnx.ModelProto:
    import onnx

    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, bytes):
        return onnx.load_from_string(model)
    if isinstance(model, (bytearray, memoryview)):
        return onnx.load_from_string(bytes(model))
    return onnx.load(str(os.fspath(model)), load_external_data=False)  # type: ignore[arg-type]


def convert_float_to_float16(
    model: Model,
    min_positive_val: float = 5.96e-08,
    max_finite_val: float = 65504.0,
    keep_io_types: bool = False,
    disable_shape_infer: bool = False,
    op_block_list: list[str] | None = None,
    node_block_list: list[str] | None = None,
    force_fp16_initializers: bool = False,
    force_fp16_inputs: dict[str, list[int]] | None = None,
    use_bfloat16_as_blocked_nodes_dtype: bool = False,
    *,
    data: Any = None,
) -> onnx.ModelProto:
    """Convert a float32 model, with the arguments and defaults of ONNX Runtime's function.

    data: samples, as for detent.quantize(). With them values decide which nodes stay in float32; without, operators do.
    """
    import onnx

    if not isinstance(keep_io_types, bool):
        raise refuse("keep_io_types with names", "give True, and detent casts once at each input and output")
    if force_fp16_initializers:
        raise refuse("force_fp16_initializers=True", "leave it out: what does not fit float16 would be clipped")
    if force_fp16_inputs:
        raise refuse("force_fp16_inputs", "leave it out: no such inputs are known to be safe")
    if use_bfloat16_as_blocked_nodes_dtype:
        raise refuse("use_bfloat16_as_blocked_nodes_dtype=True", "leave it out")
    if max_finite_val > 65504:
        raise refuse(f"max_finite_val={max_finite_val}", "float16 ends at 65504")
    excluded = set(op_block_list or ())
    if excluded:
        excluded &= {node.op_type for node in _proto(model).graph.node}
    chosen = {
        "float_type": "16",
        "keep_io_types": keep_io_types,
        "exclude_op_types": sorted(excluded),
        "exclude_nodes": list(node_block_list or ()),
    }
    return onnx.load_from_string(_api.quantize(model, None, data, Config.of(chosen)))
