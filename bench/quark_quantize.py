#!/usr/bin/env python3
"""AMD Quark ONNX on a folder of .npz samples: quark_quantize.py MODEL OUT NPZ_DIR METHOD THREADS [as-detent [OP_TYPE...]]
METHOD: minmax, percentile, layerwise-percentile, entropy (preset A8W8) or mse (preset XINT8: power-of-two scales only).

With "as-detent" A8W8 gets the formats that the others use: activations with zero points, weights per channel.

  quark_quantize.py --version    imports Quark, which compiles its operators the first time, and prints its version

Written for Quark 0.13; needs torch too, of which the CPU build is enough."""

import copy
import importlib
import logging
import os
import sys
from typing import Any

import peers


def config_for(method: str, as_detent: bool, op_types: list[str]) -> Any:
    """Quark's own preset with the method put in. CLE, which rewrites weights before calibration, is left out of the cost."""
    from onnxruntime.quantization import CalibrationMethod, QuantType
    from quark.onnx import Config, LayerWiseMethod, PowerOfTwoMethod
    from quark.onnx.quantization.config import get_default_config

    methods = {
        "minmax": CalibrationMethod.MinMax,
        "percentile": CalibrationMethod.Percentile,
        "layerwise-percentile": LayerWiseMethod.LayerWisePercentile,
        "mse": PowerOfTwoMethod.MinMSE,
        "entropy": CalibrationMethod.Entropy,
    }
    config = copy.deepcopy(get_default_config("XINT8" if method == "mse" else "A8W8"))
    config.calibrate_method = methods[method]
    config.include_cle = False
    config.print_summary = False
    config.op_types_to_quantize = op_types
    if as_detent and method != "mse":
        config.activation_type, config.per_channel = QuantType.QUInt8, True
        config.extra_options["ActivationSymmetric"] = False
    return Config(global_quant_config=config)


def time_calibration(attempts: list[str]) -> peers.Stage:
    """Notes every attempt: when one fails, for want of memory too, Quark goes on with a cheaper method and does not say so."""
    stage = peers.Stage()
    interface = importlib.import_module("quark.onnx.calibration.interface")
    calibrate = stage.timed(interface.calibrate_model)

    def noted(*args: Any, **kwargs: Any) -> Any:
        attempts.append(str(args[4]))
        return calibrate(*args, **kwargs)

    interface.calibrate_model = noted
    return stage


def print_version() -> None:
    importlib.import_module("quark.onnx")
    print(importlib.import_module("quark").__version__)


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print_version()
        return
    model, out, folder, method, threads, *options = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = threads  # torch reads it when it is loaded
    logging.disable(logging.WARNING)
    peers.set_threads(int(threads))
    from quark.onnx import ModelQuantizer

    attempts: list[str] = []
    stage = time_calibration(attempts)
    config = config_for(method, options[:1] == ["as-detent"], options[1:])
    ModelQuantizer(config).quantize_model(model, out, peers.Samples(folder))
    if len(attempts) != 1:
        raise SystemExit(f"calibrated as {', then '.join(attempts)}")
    stage.report(out)


if __name__ == "__main__":
    main()
