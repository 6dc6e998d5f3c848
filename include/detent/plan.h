// What quantize() or calibrate() would do and take, told without running the model.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "detent/quantize.h"

namespace detent {

struct PlannedMemory {
  std::string what;
  std::uint64_t bytes = 0;
};

struct Plan {
  std::size_t files = 0;                                    // of calibration data: at least so many samples
  std::vector<std::pair<std::string, std::string>> inputs;  // name, shape in the first sample
  std::size_t nodes_quantized = 0;
  std::size_t nodes_in_float = 0;
  std::size_t tensors_observed = 0;
  std::uint64_t macs = 0;               // of one sample
  std::uint64_t flops = 0;              // of one sample
  std::uint64_t observed_elements = 0;  // of one sample
  std::vector<PlannedMemory> memory;    // parts of the peak
  std::uint64_t peak_memory = 0;        // bytes resident, from the shapes of the first sample
  std::uint64_t work_bytes = 0;         // files in the working directory
  std::uint64_t output_bytes = 0;       // the quantized model, roughly
  double calibration_seconds = 0;       // roughly, from this machine's measured arithmetic rate; for `files` samples
  std::vector<std::string> notes;
};

/// Options as for quantize(); `output` is not needed. Calibration data give the shapes of dynamic axes. Throws Error.
Plan plan(const QuantizeOptions& options);

}  // namespace detent
