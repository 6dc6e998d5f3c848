"""A pass for Microsoft's Olive that quantizes with detent. olive_package() registers it with a workflow."""

import json
import pathlib
from typing import Any

import detent
from olive.data.config import DataConfig
from olive.hardware import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam


class DetentQuantization(Pass):
    """Static quantization with calibration data of the workflow."""

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        return {
            "data_config": PassConfigParam(type_=DataConfig | dict, required=True, description="Calibration data."),
            "target": PassConfigParam(type_=str, default_value=None, description="Where the model will run, as --target."),
            "options": PassConfigParam(type_=dict, default_value={}, description="Options of detent.Config by name."),
            "report": PassConfigParam(type_=str, default_value=None, description="HTML report to write."),
        }

    def _run_for_config(self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str) -> ONNXModelHandler:
        data = config.data_config if isinstance(config.data_config, DataConfig) else DataConfig(**config.data_config)
        reader = data.to_data_container().create_calibration_dataloader(model_path=model.model_path, io_config=model.io_config)
        output = resolve_onnx_path(output_model_path, pathlib.Path(model.model_path).name)
        options = {**config.options, **({"target": config.target} if config.target else {})}
        detent.quantize(model.model_path, output, reader, options, report=config.report)
        return ONNXModelHandler(model_path=output)


def olive_package() -> dict[str, Any]:
    """Olive's own package configuration and this pass."""
    package = json.loads(pathlib.Path(OlivePackageConfig.get_default_config_path()).read_text())
    package["passes"]["DetentQuantization"] = {
        "module_path": f"{__name__}.DetentQuantization",
        "supported_providers": ["*"],
        "supported_accelerators": ["*"],
        "supported_precisions": ["int4", "int8", "int16", "uint4", "uint8", "uint16"],
        "supported_algorithms": ["rtn", "gptq", "adaround"],
        "supported_quantization_encodings": ["qdq"],
        "dataset": "dataset_required",
    }
    return package
