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

/// A part of the model that runs by itself, over all samples.
struct PlannedSegment {
  std::string first, last;  // nodes
  std::size_t nodes = 0;
};

/// What fine-tuning will take; unset figures are 0.
struct PlannedFinetune {
  bool only_if_needed = false;  // nobody asked for it: measuring will say
  std::size_t layers = 0;
  std::size_t streamed = 0;  // of them, in mini-batches
  std::string heaviest;      // the layer that takes most memory
  std::uint64_t heaviest_bytes = 0;
  double seconds = 0;  // of solving, roughly
};

/// What a layer will take of a device's memory while it is fine-tuned: of the device that takes most.
struct PlannedDeviceLayer {
  std::string name;
  bool streamed = false;
  std::uint64_t bytes = 0;
};

/// What the run will take of each device; the runtime's own memory in calibration is not known before.
struct PlannedDevice {
  std::size_t devices = 0;                 // 0: the CPU's run
  std::uint64_t budget = 0;                // of each
  std::uint64_t calibration_counters = 0;  // on the first; 0 where nothing is calibrated
  std::vector<PlannedDeviceLayer> layers;  // in the order of the model

  std::uint64_t peak() const noexcept;
  bool fits() const noexcept { return peak() <= budget; }
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
  std::uint64_t memory_budget = 0;
  std::uint64_t disk_budget = 0;
  std::vector<PlannedSegment> segments;  // one: plain inference
  std::uint64_t waiting_bytes = 0;       // what waits between segments at the most
  std::uint64_t waiting_on_disk = 0;     // of it, on disk
  PlannedFinetune finetune;
  PlannedDevice device;
  double calibration_seconds = 0;  // roughly, from this machine's measured arithmetic rate; for `files` samples
  double measuring_seconds = 0;    // the same, of what rounding does to the results
  std::vector<std::string> notes;
};

/// Options as for quantize(); `output` is not needed. Calibration data give the shapes of dynamic axes. A plan for
/// devices needs none of them where their memory budget is given; else Error of kind device says what is missing.
/// Throws Error.
Plan plan(const QuantizeOptions& options);

}  // namespace detent
