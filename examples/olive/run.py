#!/usr/bin/env python3
"""An Olive workflow with detent as its quantizer: Yahoo's open_nsfw, calibrated with photos.

    pip install '.[images]' olive-ai
    python scripts/fetch_models.py opennsfw photos
    python examples/olive/run.py

The quantized model is written to build/models/olive."""

import argparse
import pathlib

import detent
import torch
from detent_pass import olive_package
from olive.data.registry import Registry
from olive.workflows import run

MODELS = pathlib.Path(__file__).resolve().parents[2] / "build" / "models"


class Photos(torch.utils.data.Dataset):
    """Olive's data loader puts the rows of a batch together, and wants a label beside each."""

    def __init__(self, paths: list[pathlib.Path]) -> None:
        scaled = {"size": 224, "mean": (104 / 255, 117 / 255, 123 / 255), "std": 1 / 255, "layout": "nhwc", "channels": "BGR"}
        self.rows = [sample["input:0"][0] for sample in detent.data.images(paths, name="input:0", **scaled)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int):
        return {"input:0": torch.from_numpy(self.rows[at])}, 0


@Registry.register_dataset()
def photos(**_options) -> Photos:
    return Photos(sorted((MODELS / "photos").iterdir())[:10])


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    output = MODELS / "olive"
    workflow = {
        "input_model": {"type": "ONNXModel", "model_path": str(MODELS / "opennsfw.onnx")},
        "data_configs": [{"name": "photos", "load_dataset_config": {"type": "photos"}}],
        "passes": {
            "quantize": {
                "type": "DetentQuantization",
                "data_config": "photos",
                "options": {"weight_type": "uint8", "method": "percentile", "finetune": "gptq"},
            }
        },
        "output_dir": str(output),
        "cache_dir": str(output / "cache"),
    }
    run(workflow, package_config=olive_package())
    quantized = output / "model.onnx"
    print(f"{quantized}: {detent.inspect(quantized).op_types['QuantizeLinear']} tensors quantized")


if __name__ == "__main__":
    main()
