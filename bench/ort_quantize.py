#!/usr/bin/env python3
"""onnxruntime.quantization on a folder of .npz samples: ort_quantize.py MODEL OUT NPZ_DIR minmax|percentile|entropy THREADS"""

import glob
import logging
import os
import sys

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

model, out, folder, method, threads = sys.argv[1:]
logging.disable(logging.WARNING)


class Samples(CalibrationDataReader):
    def __init__(self):
        self.files = iter(sorted(glob.glob(os.path.join(folder, "*.npz"))))

    def get_next(self):
        path = next(self.files, None)
        return None if path is None else dict(np.load(path))


# quantize_static has no option for the number of threads
plain = onnxruntime.SessionOptions


def session_options():
    options = plain()
    options.intra_op_num_threads = int(threads)
    return options


onnxruntime.SessionOptions = session_options

methods = {"minmax": CalibrationMethod.MinMax, "percentile": CalibrationMethod.Percentile, "entropy": CalibrationMethod.Entropy}
quantize_static(
    model,
    out,
    Samples(),
    quant_format=QuantFormat.QDQ,
    per_channel=True,
    weight_type=QuantType.QInt8,
    calibrate_method=methods[method],
)
