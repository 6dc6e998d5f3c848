#!/usr/bin/env python3
"""onnxruntime.quantization on a folder of .npz samples: ort_quantize.py MODEL OUT NPZ_DIR METHOD THREADS [OP_TYPE...]
METHOD: minmax, percentile or entropy, or qnn: get_qnn_qdq_config with its defaults."""

import importlib
import logging
import sys
from typing import Any

import peers
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

METHODS = {"minmax": CalibrationMethod.MinMax, "percentile": CalibrationMethod.Percentile, "entropy": CalibrationMethod.Entropy}


def time_calibration() -> peers.Stage:
    """Calibration is three steps of quantize_static: make a calibrator, give it the samples, compute the ranges."""
    stage = peers.Stage()
    module = importlib.import_module("onnxruntime.quantization.quantize")  # the package has a function of that name
    create = stage.timed(module.create_calibrator)

    def create_timed(*args: Any, **kwargs: Any) -> Any:
        calibrator = create(*args, **kwargs)
        calibrator.collect_data = stage.timed(calibrator.collect_data)
        calibrator.compute_data = stage.timed(calibrator.compute_data)
        return calibrator

    module.create_calibrator = create_timed
    return stage


def quantize_for_qnn(model: str, out: str, folder: str) -> None:
    from onnxruntime.quantization import quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

    ready = f"{out}.preprocessed"
    source = ready if qnn_preprocess_model(model, ready) else model
    quantize(source, out, get_qnn_qdq_config(source, peers.Samples(folder)))


def main() -> None:
    model, out, folder, method, threads, *op_types = sys.argv[1:]
    logging.disable(logging.WARNING)
    peers.set_threads(int(threads))
    stage = time_calibration()
    if method == "qnn":
        quantize_for_qnn(model, out, folder)
        stage.report(out)
        return
    quantize_static(
        model,
        out,
        peers.Samples(folder),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=op_types or None,
        per_channel=True,
        weight_type=QuantType.QInt8,
        calibrate_method=METHODS[method],
    )
    stage.report(out)


if __name__ == "__main__":
    main()
