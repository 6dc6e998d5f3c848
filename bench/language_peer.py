#!/usr/bin/env python3
"""ONNX Runtime's MatMulNBitsQuantizer at 4 bits: language_peer.py MODEL OUT METHOD BLOCK SYMMETRIC
METHOD: default, rtn, k_quant or hqq; SYMMETRIC: 0 or 1, of which k_quant and hqq take no notice."""

import logging
import sys

import onnx
from onnxruntime.quantization import matmul_nbits_quantizer as nbits


def main() -> None:
    model, out, method, block, symmetric = sys.argv[1:]
    logging.disable(logging.WARNING)
    configs = {
        "default": lambda: nbits.DefaultWeightOnlyQuantConfig(int(block), bool(int(symmetric)), 1),
        "rtn": nbits.RTNWeightOnlyQuantConfig,
        "k_quant": nbits.KQuantWeightOnlyQuantConfig,
        "hqq": lambda: nbits.HQQWeightOnlyQuantConfig(int(block)),
    }
    quantizer = nbits.MatMulNBitsQuantizer(
        onnx.load(model),
        block_size=int(block),
        is_symmetric=bool(int(symmetric)),
        accuracy_level=1,
        algo_config=configs[method](),
    )
    quantizer.process()
    onnx.save(quantizer.model.model, out)


if __name__ == "__main__":
    main()
