// Predicts what quantize() or calibrate() would do, and its memory, disk and time, without running the model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "detent/quantize.h"
#include "detent/transformer.h"

namespace detent {

/// A part of the memory, or the peak of a stage.
struct PlannedMemory {
  std::string what;
  std::uint64_t bytes = 0;
};

/// A part of the model that runs on all samples before the next part starts.
struct PlannedSegment {
  std::string first, last;  // nodes
  std::size_t nodes = 0;
};

/// The predicted cost of fine-tuning; figures that are not known are 0.
struct PlannedFinetune {
  bool only_if_needed = false;  // not asked for: the accuracy measurement decides
  std::size_t layers = 0;
  std::size_t streamed = 0;  // layers of these that are solved in mini-batches
  std::string heaviest;      // the layer that needs most memory
  std::uint64_t heaviest_bytes = 0;
  double seconds = 0;  // estimated time of solving
};

/// Device memory that a layer needs while it is fine-tuned, on the device that needs most.
struct PlannedDeviceLayer {
  std::string name;
  bool streamed = false;
  std::uint64_t bytes = 0;
};

/// Memory that the run needs on each device. The runtime's own memory in calibration cannot be predicted.
struct PlannedDevice {
  std::size_t devices = 0;                 // 0: the run uses the CPU only
  std::uint64_t budget = 0;                // [bytes] of each device
  std::uint64_t calibration_counters = 0;  // [bytes] on the first device; 0 without calibration
  std::vector<PlannedDeviceLayer> layers;  // in the order of the model

  std::uint64_t peak() const noexcept;
  /// What a layer may take: the float and the quantized model run beside it.
  std::uint64_t layer_budget() const noexcept { return budget / 2; }
  bool fits() const noexcept;
};

/// What several processes (ranks) share of a stage. Seconds are those of one process on this machine.
struct PlannedShare {
  std::string what;
  double shared_seconds = 0;   // of what is divided among ranks
  double own_seconds = 0;      // of what each rank does, or rank 0 alone
  double parts = 1;            // into which the former can be divided
  double exchanged_bytes = 0;  // that all ranks get of each other, all together
  double gathered_bytes = 0;   // that rank 0 gets of each other rank

  /// What rank 0 gets of so many ranks.
  double received_bytes(std::size_t ranks) const noexcept;
  /// Time of so many ranks that are joined by such a network.
  double seconds(std::size_t ranks, double bits_per_second) const noexcept;
};

/// What a run would do, and the memory, disk and time that it would take.
struct Plan {
  std::size_t samples = 0;                                  // where files hold several, as many as the first does
  std::vector<std::pair<std::string, std::string>> inputs;  // name, shape in the first sample
  std::size_t nodes_quantized = 0;
  std::size_t nodes_in_float = 0;  // counted as in QuantizeResult
  /// nodes_quantized, if measuring accuracy quantizes all SiLU and HardSwish nodes; it may also leave some in float.
  std::size_t nodes_with_gates = 0;
  bool nodes_may_change = false;               // by what measuring accuracy finds
  std::optional<FloatConversion> floats = {};  // of runs that change types alone; `casts` is not known
  std::size_t tensors_observed = 0;
  std::uint64_t macs = 0;                // of one sample
  std::uint64_t flops = 0;               // of one sample
  std::uint64_t observed_elements = 0;   // of one sample
  std::vector<PlannedMemory> memory;     // parts of the peak of calibration, from the shapes of the first sample
  std::vector<PlannedMemory> stages;     // peak of each stage, resident bytes; those that the budget leaves out say so
  std::uint64_t peak_memory = 0;         // [bytes] of the run: the largest of these
  std::uint64_t work_bytes = 0;          // files in the working directory
  std::uint64_t output_bytes = 0;        // estimated size of the quantized model
  std::uint64_t memory_budget = 0;       // [bytes]
  std::uint64_t disk_budget = 0;         // [bytes]
  std::vector<PlannedSegment> segments;  // a single one is plain inference
  std::uint64_t waiting_bytes = 0;       // most bytes of tensors spooled between segments at one time
  std::uint64_t waiting_on_disk = 0;     // [bytes] the part of these on disk
  PlannedFinetune finetune;
  PlannedDevice device;
  double calibration_seconds = 0;    // estimate from this machine's measured arithmetic rate, for all samples
  double measuring_seconds = 0;      // the same for measuring accuracy
  double measuring_inferences = 0;   // in inferences of all samples, as the runtime runs the float model by default
  std::vector<PlannedShare> shares;  // of stages whose times are known
  std::vector<std::string> notes;
  std::optional<Transformer> transformer = {};  // what the model has of one
  std::string name;                             // of a member of a family
  /// Of a family, in its order; beside them are only what all have in common, the largest peak and the sum of outputs.
  std::vector<Plan> family = {};
};

/// Takes the options of quantize() without `output`. Calibration data give the shapes of dynamic axes. A plan for
/// devices does not need the devices if their memory budget is given; otherwise a missing one is an Error of kind
/// device. Throws Error.
Plan plan(const QuantizeOptions& options);

}  // namespace detent
