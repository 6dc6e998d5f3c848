// Trials within the budgets: how the model is cut for them, and where tensors are spooled between the cuts.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/progress.h"
#include "detent/resources.h"
#include "remedies/trials.h"
#include "run/prepare.h"
#include "run/sweep_setup.h"

namespace detent::remedies {

struct TrialRunnerOptions {
  Resources resources;
  std::filesystem::path directory;  // for working files
  int threads = 0;
  Progress progress = {};
  std::stop_token stop = {};
};

/// Runs trials of one model. The cuts are planned once and serve all of them; each call has a spool of its own.
class TrialRunner {
 public:
  /// Everything must outlive the runner.
  TrialRunner(const run::Prepared& prepared, const exec::Runtime& runtime, data::SampleSource& source,
              const TrialRunnerOptions& options)
      : prepared_(prepared), runtime_(runtime), source_(source), options_(options) {}

  /// run_trials() on the marks of `placement` that have an entry in `values`. Throws resource when the budget cannot be
  /// met.
  std::vector<TrialResult> run(const quantization::Placement& placement, const quantization::AssignedValues& values,
                               std::span<const accuracy::Trial> trials, TrialSamples samples,
                               decltype(TrialOptions::watch) watch = {});

 private:
  void plan_sweep(const quantization::Placement& placement, const std::filesystem::path& directory);

  const run::Prepared& prepared_;
  const exec::Runtime& runtime_;
  data::SampleSource& source_;
  const TrialRunnerOptions& options_;
  std::optional<run::SweepSetup> sweep_;
};

}  // namespace detent::remedies
