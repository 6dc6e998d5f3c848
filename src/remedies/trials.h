// Runs a float model with some of its values rounded as their integers would, and measures what that does to its
// results.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "data/sample.h"
#include "exec/session.h"
#include "remedies/fallback.h"
#include "remedies/trial_model.h"
#include "run/comparison/deployed_fidelity.h"
#include "run/comparison/pairing.h"
#include "run/context.h"
#include "run/model/prepare.h"
#include "run/sweep_setup.h"
#include "shim/ranks.h"
#include "store/spool.h"

namespace detent::remedies {

/// So many samples of the source, behind the first `skipped`.
struct TrialSamples {
  std::size_t count = 1;
  std::size_t skipped = 0;
};

struct TrialOptions {
  TrialSamples samples;
  std::vector<int> cuts = {};     // of the trial model
  store::Spool* spool = nullptr;  // needed where it is cut
  /// Of the float model in one piece: those that are there are not computed again.
  run::FloatResults* references = nullptr;
  /// Is shown the marked values of the float model's runs, by their marks; may be empty.
  std::function<void(const std::string& mark, const data::TensorView& value)> watch = {};
};

/// Of one trial.
struct TrialResult {
  std::vector<run::PairSums> points;   // of the trial model, each over all samples
  std::vector<run::PairSums> outputs;  // the same
  double log_errors = 0;               // sum over points and samples of the logarithm of noise / signal
  std::size_t pairs = 0;               // of them
};

/// Errors (see errors_of) of 60 dB and less tell nothing about other samples: no choice is made for them.
inline constexpr double kNegligibleError = 1e-6;
/// The error where the integers give infinities or NaN and the float model numbers.
inline constexpr double kLost = 1e6;

/// Noise / signal at each point; 0 at points without signal.
PointErrors errors_of(const TrialResult& result);
/// The largest of them: points are judged each.
double worst_of(const PointErrors& errors);
inline double worst_error_of(const TrialResult& result) { return worst_of(errors_of(result)); }

/// Geometric mean over the points of the error after over that before; points of 40 dB (of 60, if there are no others)
/// and better are taken as that good. Infinite where one point gets clearly worse: by more than 1 dB, to less than 40.
double mean_error_ratio(const PointErrors& before, const PointErrors& after);
/// Whether the errors fall on the whole, no point gets clearly worse, and the worst one does not get worse at all.
bool is_improved(const PointErrors& before, const PointErrors& after);

/// Geometric mean over points and samples of noise / signal, each taken as 60 dB at the best. For comparisons of two
/// trials: a sample of which both make nonsense is most of errors_of(), and says little about which is better.
double typical_error_of(const TrialResult& result);

/// Of the worst output: its signal to quantization noise ratio in dB, infinite when all are equal, and its cosine.
double worst_sqnr_db(const TrialResult& result);
double worst_cosine(const TrialResult& result);

// Trials within the budgets: how the model is cut for them, and where tensors are spooled between the cuts.

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
                               decltype(TrialOptions::watch) watch = {}, run::FloatResults* references = nullptr);

 private:
  void plan_sweep(const quantization::Placement& placement, const run::Context& context);

  const run::Prepared& prepared_;
  data::SampleSource& source_;
  run::Context context_;
  std::optional<run::SweepSetup> sweep_;
};

// Trials that run only a part of the model: from where a value is made to a little behind it, where the error is taken.
// Enough to compare ways to round that value, at a fraction of an inference.

/// Cuts a model into at most `most` parts of about the same work, where few values cross: positions between nodes, both
/// ends among them.
std::vector<int> parts_of(const onnx::Model& model, const graph::ValueTypes& static_types, std::size_t most);

/// Runs each trial from the start of the part that holds the first of what it rounds to the end of the next part, on
/// values of the float model. The points of a result are the floats that later parts read, and the points of the trial
/// model that are made on the way; there are no outputs. Keeps the values that cross a cut in memory, of all samples.
/// `parts` are positions of the trial model.
std::vector<TrialResult> run_near_trials(const run::Context& context, const TrialModel& model,
                                         const std::vector<int>& parts, std::span<const Trial> trials,
                                         data::SampleSource& source, TrialSamples samples);

/// The part in which a trial begins.
std::size_t part_of(const TrialModel& model, const graph::Index& index, const std::vector<int>& parts,
                    const Trial& trial);

/// Collective: each rank runs some of the trials by `run`, neighbours together, and all get the results of all. Null
/// runs all of them.
std::vector<TrialResult> share_trials(
    shim::Ranks* ranks, std::span<const Trial> trials, const std::stop_token& stop,
    const std::function<std::vector<TrialResult>(std::span<const Trial> trials)>& run);

}  // namespace detent::remedies
