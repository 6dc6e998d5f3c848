// Runs a float model with some of its values rounded as their integers would, and measures what that does to its
// results.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/sample.h"
#include "exec/session.h"
#include "remedies/fake_quantizer.h"
#include "remedies/fallback_choice.h"
#include "remedies/trial_model.h"
#include "run/comparison/pairing.h"
#include "run/context.h"
#include "store/spool.h"

namespace detent::remedies {

/// So many samples of the source, behind the first `skipped`.
struct TrialSamples {
  std::size_t count = 1;
  std::size_t skipped = 0;
};

using References = std::map<std::pair<std::size_t, std::string>, data::Array>;
inline constexpr std::uint64_t kReferenceBytes = std::uint64_t{16} << 20;

struct TrialOptions {
  TrialSamples samples;
  std::vector<int> cuts = {};     // of the trial model
  store::Spool* spool = nullptr;  // needed where it is cut
  /// Results of the float model by position of the sample and by name: those that are there are not computed again, and
  /// others are kept up to `reference_bytes`.
  References* references = nullptr;
  std::uint64_t reference_bytes = kReferenceBytes;
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

/// Runs every trial on these samples. One sweep serves all of them: each segment is loaded once. Results depend
/// neither on cuts nor on the order of trials.
std::vector<TrialResult> run_trials(const run::Context& context, const TrialModel& model, std::span<const Trial> trials,
                                    data::SampleSource& source, const TrialOptions& options);

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

}  // namespace detent::remedies
