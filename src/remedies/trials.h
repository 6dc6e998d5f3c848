// Runs a float model with some of its values rounded as their integers would, and measures what that does to its
// results.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "accuracy/fake_quantizer.h"
#include "accuracy/trial_model.h"
#include "data/sample.h"
#include "exec/session.h"
#include "run/context.h"
#include "run/pairing.h"
#include "store/spool.h"

namespace detent::remedies {

/// The last of each `every` samples of the source, until there are so many.
struct TrialSamples {
  std::size_t count = 1;
  std::size_t every = 1;
};

/// So many of `all`, at equal distances; `count` is from 1 to `all`.
inline TrialSamples spread_over(std::size_t all, std::size_t count) { return {count, all / count}; }

struct TrialOptions {
  TrialSamples samples;
  std::vector<int> cuts = {};     // of the trial model
  store::Spool* spool = nullptr;  // needed where it is cut
  /// Is shown the marked values of the float model's runs, by their marks; may be empty.
  std::function<void(const std::string& mark, const data::TensorView& value)> watch = {};
};

/// Of one trial.
struct TrialResult {
  std::vector<run::PairSums> points;  // of the trial model, each over all samples
  double log_errors = 0;              // sum over points and samples of the logarithm of noise / signal
  std::size_t pairs = 0;              // of them
};

/// Runs every trial on these samples. One sweep serves all of them: each segment is loaded once. Results depend
/// neither on cuts nor on the order of trials.
std::vector<TrialResult> run_trials(const run::Context& context, const accuracy::TrialModel& model,
                                    std::span<const accuracy::Trial> trials, data::SampleSource& source,
                                    const TrialOptions& options);

/// Errors (see noise_of) of 60 dB and less tell nothing about other samples: no choice is made for them.
inline constexpr double kNoHarm = 1e-6;

/// Mean over the points of noise / signal; points without signal are left out.
double noise_of(const TrialResult& result);

/// Geometric mean over points and samples of noise / signal, each taken as 60 dB at the best. For comparisons of two
/// trials: a sample of which both make nonsense is most of noise_of(), and says little about which is better.
double typical_error_of(const TrialResult& result);

/// Of the worst point: its signal to quantization noise ratio in dB, infinite when all are equal, and its cosine.
double worst_sqnr_db(const TrialResult& result);
double worst_cosine(const TrialResult& result);

}  // namespace detent::remedies
