// The stages of quantize, from the model as it was given to the file that was written, proved and timed: one table for
// all kinds of results.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "detent/plan.h"
#include "detent/quantize.h"
#include "graph/index.h"
#include "pipeline/run.h"
#include "planning/memory.h"
#include "profile/machine.h"
#include "profile/report.h"
#include "remedies/evaluator.h"

namespace detent::pipeline {

// What the stages of a run would do and take, told without running a sample: the other half of the table of stages.

/// Of two nodes, a scale and a zero point in a file.
inline constexpr std::uint64_t kPairBytes = 400;

/// About: of all but the constants of a model, which are names, attributes and types.
std::uint64_t graph_bytes(const onnx::Model& model);

/// The same with its constants.
std::uint64_t bytes_as_it_is(const onnx::Model& model);

/// Bytes that these float32 constants take less as integers of 8 bits.
std::uint64_t saved_by_8_bits(const onnx::Model& model, const std::set<std::string>& constants);

/// A plan while the stages tell, and what one tells the next.
struct Forecast {
  Plan plan;
  std::map<std::string, std::vector<std::int64_t>> shapes;  // of the inputs in the first sample
  std::uint64_t sample_bytes = 0;                           // of the first
  std::uint64_t float_bytes = 0;                            // of constants that integers or blocks leave in float32
  /// With static shapes, as in the first sample. Unset: not known, and neither are memory and work.
  std::optional<graph::ValueTypes> types = {};
  planning::Circumstances circumstances = {};
  std::ptrdiff_t products = 0;  // of the model
  remedies::StageMemory memory = {};
  profile::MachinePeaks machine = {};
};

/// Notes are told through the run's result.
using Prediction = void (*)(Run&, Forecast&);

/// The opening stages do what they do in a run: what follows depends on the model that comes out.
template <void (*work)(Run&)>
void forecast_by_running(Run& run, Forecast&) {
  work(run);
}

/// A directory and the runtime, for no output.
void open_without_output(Run& run, Forecast& forecast);
/// How many files there are, and what the first sample is like.
void look_at_samples(Run& run, Forecast& forecast);

/// With shapes as in the first sample, if there is one.
graph::ValueTypes types_of_samples(const Run& run, const run::Prepared& prepared, const Forecast& forecast);

void predict_calibration(Run& run, Forecast& forecast);
void predict_measuring(Run& run, Forecast& forecast);
void predict_integers(Run& run, Forecast& forecast);
void predict_forms(Run& run, Forecast& forecast);
void predict_proof(Run& run, Forecast& forecast);
void predict_choosing_again(Run& run, Forecast& forecast);
void predict_timing(Run& run, Forecast& forecast);

/// What is measured chooses bits.
void predict_choice_of_bits(Run& run, Forecast& forecast);
void predict_blocks(Run& run, Forecast& forecast);
void predict_form(Run& run, Forecast& forecast);
void predict_cache(Run& run, Forecast& forecast);
void predict_mixture(Run& run, Forecast& forecast);
void predict_floats(Run& run, Forecast& forecast);

struct Stage {
  std::string_view name;
  unsigned results;               // a mask of config::Result: the runs that may have it
  bool (*wanted)(const Recipe&);  // and of these, the ones whose options ask for it
  void (*work)(Run&);
  /// What the stage adds to a plan of the run; null: nothing.
  Prediction predict = nullptr;
  /// Of the profile; neighbours of the same step are told as one. Unset: the stage tells its steps itself, if any.
  std::optional<profile::Step> step = {};
};

/// In their order.
std::span<const Stage> stages();
bool has(const Stage& stage, const Recipe& recipe);

/// Runs the stages that the run's recipe asks for, those before `end` alone where it is given.
void run_until(Run& run, void (*end)(Run&) = nullptr);

/// Makes the recipe of valid options, and runs the stages that it asks for. The output is written completely or not at
/// all. Throws Error.
QuantizeResult run_stages(const QuantizeOptions& options, const SharedByRuns& shared = {});

}  // namespace detent::pipeline
