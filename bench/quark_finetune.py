#!/usr/bin/env python3
"""AMD Quark ONNX with fine-tuning on a folder of .npz samples:
quark_finetune.py MODEL OUT NPZ_DIR THREADS adaround|adaquant ITERATIONS BATCH MEMORY_LEVEL [WEIGHT_TYPE [DEVICE [OP_TYPE...]]]

MinMax ranges, uint8 activations with zero points, weights per channel, as detent does by default; WEIGHT_TYPE int8 or uint8.
The last line of the output holds the seconds spent in fine-tuning. Written for Quark 0.13."""

import copy
import importlib
import json
import logging
import os
import sys
from typing import Any

import peers


def config_for(algorithm: str, iterations: int, batch: int, level: int, weight_type: str, device: str, op_types: list[str]) -> Any:
    from onnxruntime.quantization import QuantType
    from quark.onnx import Config
    from quark.onnx.quantization.config import get_default_config

    config = copy.deepcopy(get_default_config(f"A8W8_{algorithm.upper()}"))
    config.include_cle = False
    config.print_summary = False
    config.op_types_to_quantize = op_types
    config.activation_type, config.per_channel = QuantType.QUInt8, True
    config.weight_type = QuantType.QInt8 if weight_type == "int8" else QuantType.QUInt8
    config.extra_options["ActivationSymmetric"] = False
    config.extra_options["FastFinetune"] = {
        **config.extra_options["FastFinetune"],
        "NumIterations": iterations,
        "BatchSize": batch,
        "MemOptLevel": level,
        "OptimDevice": device,
        "EarlyStop": False,
        "UpdateBias": False,
    }
    return Config(global_quant_config=config)


def main() -> None:
    model, out, folder, threads, algorithm, iterations, batch, level, *rest = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = threads  # torch reads it when it is loaded
    logging.disable(logging.WARNING)
    peers.set_threads(int(threads))
    from quark.onnx import ModelQuantizer

    stage = peers.Stage()
    interface = importlib.import_module("quark.onnx.algorithm.interface")
    interface.fast_finetune = stage.timed(interface.fast_finetune)
    config = config_for(algorithm, int(iterations), int(batch), int(level), *(rest + ["int8", "cpu"][len(rest) :])[:2], rest[2:])
    ModelQuantizer(config).quantize_model(model, out, peers.Samples(folder))
    if not os.path.exists(out):
        raise SystemExit("the quantizer returned without an error and wrote no model")
    print("\n" + json.dumps({"stage_s": stage.seconds}))


if __name__ == "__main__":
    main()
