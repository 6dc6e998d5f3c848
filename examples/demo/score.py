"""score.py MODEL SAMPLES OUTPUT: runs MODEL on each sample of SAMPLES (.npy, one row a sample), writes its last output to
OUTPUT (.npy) and prints the mean milliseconds of a run. One sample and its result are in memory at a time, so that this
process's peak memory is the model's."""

import sys
import time

import numpy
import onnxruntime


def main(model, samples, output):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name, seconds = session.get_inputs()[0].name, 0.0
    with open(samples, "rb") as file, open(output, "wb") as results:
        numpy.lib.format.read_magic(file)
        shape, _, dtype = numpy.lib.format.read_array_header_1_0(file)
        row = (1, *shape[1:])
        for i in range(shape[0] + 1):
            if i != 1:  # the first sample is run twice: once to warm up, untimed
                data = numpy.fromfile(file, dtype, int(numpy.prod(row))).reshape(row)
            start = time.perf_counter()
            result = session.run(None, {name: data})[-1]
            if i == 0:
                whole = {"descr": result.dtype.str, "fortran_order": False, "shape": (shape[0], *result.shape[1:])}
                numpy.lib.format.write_array_header_1_0(results, whole)
                continue
            seconds += time.perf_counter() - start
            results.write(result.tobytes())
    print(1000 * seconds / shape[0])


if "--help" in sys.argv:
    print(__doc__)
else:
    main(*sys.argv[1:])
