// Trials within the budgets: how the model is cut for them, and where tensors are spooled between the cuts.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "remedies/trials.h"
#include "run/context.h"
#include "run/model/prepare.h"
#include "run/sweep_setup.h"

namespace detent::remedies {

/// Runs trials of one model. The cuts are planned once and serve all of them; each call has a spool of its own.
class TrialRunner {
 public:
  /// Model and source must outlive the runner.
  TrialRunner(const run::Prepared& prepared, data::SampleSource& source, const run::Context& context)
      : prepared_(prepared), source_(source), context_(context) {}

  /// run_trials() on the marks of `placement` that have an entry in `values`. Throws resource when the budget cannot be
  /// met.
  std::vector<TrialResult> run(const quantization::Placement& placement, const quantization::AssignedValues& values,
                               std::span<const Trial> trials, TrialSamples samples,
                               decltype(TrialOptions::watch) watch = {}, References* references = nullptr);

 private:
  void plan_sweep(const quantization::Placement& placement, const run::Context& context);

  const run::Prepared& prepared_;
  data::SampleSource& source_;
  run::Context context_;
  std::optional<run::SweepSetup> sweep_;
};

}  // namespace detent::remedies
