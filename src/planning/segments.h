// Where to cut a model so that calibration keeps to a budget.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "graph/index.h"
#include "graph/segment.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "planning/calibration.h"
#include "planning/spool_memory.h"

namespace detent::planning {

struct Budget {
  std::uint64_t memory = 0;
  std::uint64_t disk = 0;
  bool all_on_disk = false;    // memory level 2
  bool all_in_memory = false;  // memory level 0
  std::size_t segments = 0;    // at least; 0: as few as possible
};

struct SweepPlan {
  std::vector<int> cuts;            // positions between nodes, see graph::make_chain
  std::uint64_t memory = 0;         // resident at the peak, with tensors spooled in memory
  SpoolMemory spool;                // what the spool may take of it
  std::uint64_t spool_bytes = 0;    // most bytes spooled at one time
  std::uint64_t spool_traffic = 0;  // written and read in all
  std::uint64_t disk = 0;           // most bytes spooled on disk
};

/// The plan that moves the fewest bytes. `types` must be of static shapes, as for the samples at hand. Throws resource
/// naming the smallest budget that would do when this one cannot be met. `samples` is how many there are.
SweepPlan plan_sweep(const onnx::Model& model, const graph::ValueTypes& types, const std::vector<std::string>& observed,
                     const Circumstances& circumstances, std::uint64_t samples, const Budget& budget);

}  // namespace detent::planning
