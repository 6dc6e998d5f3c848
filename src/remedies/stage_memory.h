// What the stages behind calibration take, told before the run: so that a plan names the peak of the whole run, and a
// run under a budget leaves out at its start what would not keep to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "graph/values.h"
#include "quantization/placement/placement.h"
#include "run/model/prepare.h"

namespace detent::remedies {

/// Resident bytes at the peak of each stage; 0: the stage is not there, or what it takes is not known.
struct StageMemory {
  std::uint64_t measuring = 0;  // what roundings do to the results
  std::uint64_t tuning = 0;     // of weights
  std::uint64_t proving = 0;    // the written file judged beside the float model, in processes of their own
  std::uint64_t searching = 0;  // for layers of the written file that are computed otherwise than was measured
  std::uint64_t timing = 0;     // the float model as it is deployed, which is the larger one
};

/// Measured, on the PP-OCR detector at 320 pixels: what the search for layers that are computed otherwise takes beside
/// both models and their activations, which are values of two samples, and heap in pieces.
inline constexpr std::uint64_t kSearchBeside = std::uint64_t{40} << 20;

/// The samples that a run has: of the first, and how many.
struct SampleSizes {
  std::uint64_t bytes = 0;
  std::uint64_t count = 1;
};

/// `types` must be of static shapes, as for the samples at hand. `budget`: in bytes, for all.
StageMemory stage_memory(const run::Prepared& prepared, const graph::ValueTypes& types,
                         const quantization::Placement& placement, const QuantizeOptions& options,
                         const SampleSizes& samples, std::uint64_t budget);

/// Throws resource where a budget is given, and what was asked for (fine-tuning, a target for accuracy) needs more.
void refuse_over_budget(const QuantizeOptions& options, const StageMemory& needed);

/// What trials take beside the model's own sweep: the weight that a trial rounds stands in memory beside itself, and
/// its integers are kept.
std::uint64_t trial_memory(const onnx::Model& model, const quantization::Placement& placement);

/// What a run does not do, with a note for each.
struct LeftOut {
  bool measuring = false;
  bool tuning = false;
  bool storing = false;  // of weights of products in float
  bool timing = false;
  std::vector<std::string> notes;
};

/// Of what was not asked for, what would take more than the memory budget. What was asked for stays, and is refused by
/// the stage that finds no room. Without a budget nothing is left out.
LeftOut keep_to_budget(const QuantizeOptions& options, const run::Prepared& prepared,
                       const quantization::Placement& placement, const exec::Runtime& runtime,
                       data::SampleSource& source);

/// What samples that wait for another pass may take, of so many bytes without a budget.
std::uint64_t share_of_budget(const Resources& resources, std::uint64_t without);

}  // namespace detent::remedies
