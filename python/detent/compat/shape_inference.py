"""onnxruntime.quantization.shape_inference: detent needs no such step, so the model stays as it is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from .._models import Model
from ..errors import UsageError


def quant_pre_process(
    input_model: Model | None = None,
    output_model_path: str | os.PathLike[str] | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    **deprecated: Any,
) -> None:
    """Write the model to output_model_path, with its external data. Shape inference and optimization are part of
    quantizing: detent does both itself, so the other arguments mean nothing."""
    source = deprecated.get("input_model_path", input_model)
    if source is None or output_model_path is None:
        raise UsageError("quant_pre_process needs input_model and output_model_path")
    target = Path(output_model_path)
    if isinstance(source, bytes):
        target.write_bytes(source)
    elif isinstance(source, str | os.PathLike):
        _copy(Path(source), target)
    else:
        import onnx  # the model is one of its objects

        onnx.save(source, target, save_as_external_data=save_as_external_data)


def _copy(source: Path, target: Path) -> None:
    if os.path.exists(target) and target.samefile(source):
        return
    shutil.copyfile(source, target)
    if source.parent.resolve() == target.parent.resolve():
        return
    try:
        import onnx
        from onnx.external_data_helper import _get_all_tensors
    except ImportError:  # ONNX Runtime's function needs the package as well
        raise UsageError("quant_pre_process into another folder needs the package onnx", "write beside the model") from None
    model = onnx.load(source, load_external_data=False)
    places = {entry.value for t in _get_all_tensors(model) for entry in t.external_data if entry.key == "location"}
    for place in places:
        shutil.copyfile(source.parent / place, target.parent / place)
