// The story of static quantization, from file to file.
#pragma once

#include <string>
#include <vector>

#include "detent/quantize.h"
#include "run/run_profiler.h"

namespace detent::pipeline {

/// quantize() to integers with scales from samples or statistics. The options are valid; the run is recorded in
/// `profiler`. `in_float32`: of a model of 16-bit floats, nodes that are to stay in float32.
QuantizeResult quantize_integers(const QuantizeOptions& options, run::RunProfiler& profiler,
                                 std::vector<std::string> in_float32 = {});

}  // namespace detent::pipeline
