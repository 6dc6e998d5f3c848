// The stages of quantize, from the model as it was given to the file that was written, proved and timed: one table for
// all kinds of results.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "detent/quantize.h"
#include "pipeline/planned/predictions.h"
#include "pipeline/recipe.h"
#include "pipeline/run.h"
#include "profile/report.h"

namespace detent::pipeline {

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
