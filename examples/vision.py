#!/usr/bin/env python3
"""Quantizes an image classifier (Yahoo's open_nsfw, a thin ResNet-50) with a folder of photos.

    pip install '.[images]'
    python scripts/fetch_models.py opennsfw photos
    python examples/vision.py

Ten photos are used for calibration, the others to compare the quantized model with the float one."""

import argparse
import pathlib

import detent

MODELS = pathlib.Path(__file__).resolve().parents[1] / "build" / "models"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    photos = sorted((MODELS / "photos").iterdir())
    # The model takes rows of pixels (NHWC), blue first, 0 to 255, minus the mean of its training data.
    scaled = {"size": 224, "mean": (104 / 255, 117 / 255, 123 / 255), "std": 1 / 255, "layout": "nhwc", "channels": "BGR"}
    calibration, held_back = detent.data.images(photos[:10], **scaled), detent.data.images(photos[10:], **scaled)

    model, output = MODELS / "opennsfw.onnx", MODELS / "opennsfw.int8.onnx"
    for finetune in ("nearest", "gptq"):
        config = detent.Config(method="percentile", finetune=finetune)
        result = detent.quantize(model, output, calibration, config)
        compared = detent.compare(model, output, held_back)
        print(f"{finetune:8} {result.model_bytes_after / result.model_bytes_before:.2f} of the size", end=", ")
        print(f"SQNR {compared.outputs[0].sqnr_db:.1f} dB; worst inside: {compared.layers[0].name}")
    print(detent.inspect(output).op_types)


if __name__ == "__main__":
    main()
