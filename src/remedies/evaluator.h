// Where drafts are measured: the float model runs with values rounded as a draft would store them, on some of the
// samples, and its results are compared with those of the float model alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "graph/index.h"
#include "profile/profiler.h"
#include "profile/trace.h"
#include "quantization/assignment.h"
#include "quantization/emit/barriers.h"
#include "quantization/placement/placement.h"
#include "remedies/fallback.h"
#include "remedies/trial_model.h"
#include "remedies/trials.h"
#include "run/collect.h"
#include "run/comparison/deployed_fidelity.h"
#include "run/context.h"
#include "run/model/prepare.h"
#include "run/samples/sample_feed.h"

namespace detent::remedies {

// What remedies work on: a float model and what is to become of it.

/// What each quantized value alone does to the results when it is rounded.
struct Sensitivities {
  std::vector<std::string> values;  // in the order of the placement that they were measured under
  MarkErrors errors;
  bool each_alone = true;   // false: in groups of neighbours, see Evaluator::measure()
  std::size_t samples = 1;  // measured on so many
};

struct Draft {
  run::Prepared prepared;
  quantization::Proposals proposals;
  quantization::Assignment assignment;  // of `proposals`
  /// Nodes whose products fall back, by position; `assignment` has them so.
  std::vector<std::size_t> fallbacks;
  std::optional<Sensitivities> sensitivities;  // unset: not measured for this model yet
  std::optional<quantization::Emitted> emitted;
  bool is_cut = false;  // of these nodes only some become integers in the end: no weight makes up for another's error
  std::vector<LayerTuning> layers;  // of fine-tuning, whose integers `emitted` has
  AccuracyResult result;            // what was measured, and what remedies did
  double before_db = 0;             // as AccuracyResult::sqnr_db, before any remedy
  double worst_error = 0;           // at the points that decisions look at
  std::vector<std::string> notes;
  /// Products that make most of the error that is left, worst first: shares of that error.
  std::vector<FallbackNode> worst_left;
  std::string front_end_left;  // what front_end_left() said

  /// Assigns anew, after proposals, placement or model have changed.
  void assign(quantization::Placement placement, const QuantConfig& config) {
    assignment = quantization::assign(prepared.model, std::move(placement), proposals, config);
  }
};

/// What a run lends to its remedies.
struct TrialEnv {
  const QuantizeOptions& options;
  const onnx::Model& model;  // the float model
  const exec::Runtime& runtime;
  data::SampleSource& source;
  profile::Profiler& profiler;
  std::filesystem::path directory;  // for working files
  std::filesystem::path weights;    // for rewritten weights, which the model then refers to
  std::uint64_t samples = 0;        // of the source
  std::function<void(const LayerTuning&)> layer_tuned = {};
  profile::DeviceActivity* activity = nullptr;  // told what devices do; null: nothing is timed

  run::Context context() const {
    return {runtime,
            options.resources,
            directory,
            options.threads,
            options.progress,
            options.stop,
            run::inference_device_of(options.device, runtime)};
  }
};

class Evaluator {
 public:
  /// Everything that `env` refers to must outlive the evaluator.
  explicit Evaluator(TrialEnv env);
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  const TrialEnv& env() const noexcept { return env_; }
  /// What the passes that follow are for: Progress tells them as "accuracy: " and this.
  void begin(std::string_view purpose) { purpose_ = purpose; }
  const QuantizeOptions& options() const noexcept { return env_.options; }

  /// Runs trials of values that `tapped` lists, under the draft's placement unless another is given. Throws resource
  /// when the budget cannot be met.
  std::vector<TrialResult> run(const Draft& draft, const quantization::AssignedValues& tapped,
                               std::span<const Trial> trials, TrialSamples samples,
                               decltype(TrialOptions::watch) watch = {},
                               const quantization::Placement* placement = nullptr);

  /// The same near what each trial rounds, see run_near_trials(): to compare trials of the same values.
  std::vector<TrialResult> run_near(const Draft& draft, const quantization::AssignedValues& tapped,
                                    std::span<const Trial> trials, TrialSamples samples);

  /// On the judging samples.
  TrialResult judge(const Draft& draft, const quantization::AssignedValues& tapped,
                    const quantization::Placement& placement, const Trial& trial);
  /// With everything rounded as assigned.
  TrialResult judge(const Draft& draft, const quantization::Assignment& assignment);
  /// The same of the draft as it is, measured once.
  const TrialResult& judged(const Draft& draft);
  /// Of the draft as it is from now on; unset: it has changed, and is measured when asked for.
  void set_judged(std::optional<TrialResult> result) { judged_ = std::move(result); }

  /// Rounds each value of the draft alone. Where there are many, that is measured near the value, and groups of
  /// neighbours at the results, whose errors are shared out in proportion.
  Sensitivities measure(const Draft& draft);

  /// The share of weights in the error at the worst point: of all weights, beside that of all activations.
  double weights_share(const Draft& draft);

  /// For run_near(): few, since what rounding does near a value is much the same on all of them.
  TrialSamples near_samples();
  /// The samples that whole assignments are judged on: others than those that single values are measured on, if there
  /// are enough.
  TrialSamples judging_samples();

  /// The samples, or their rows where these can be run alone, in an order that follows from what they hold: what is
  /// measured and done then depends on neither their order, nor files, nor batches.
  run::ContentOrderedSamples& source();
  /// Of source(), so many.
  std::size_t samples() { return source().sample_count(); }

  /// By AccuracyConfig::metric, of a quantized model as it would be written and run: by the user's command or function
  /// as a share of the float model's score, else on the judging samples.
  double score(const Draft& draft, onnx::Model quantized);
  double score(const Draft& draft, const quantization::Assignment& assignment);
  /// On the judging samples, of a quantized model as it would be written and run.
  run::DeployedFidelity deployed(const onnx::Model& quantized);
  /// What the float model gives, in trials and as deployed.
  run::FloatResults& float_results() { return float_results_; }

  /// The types of the draft's values, with the shapes of the first sample.
  const graph::ValueTypes& static_types(const Draft& draft);

  /// Gives back the memory of what trials keep for those that may follow, for work that needs it. They take longer
  /// then.
  void release_trial_memory();

  /// To be called when the float model was rewritten.
  void model_changed();

 private:
  TrialRunner& runner(const run::Prepared& prepared);
  run::DeployedFidelity deployed(const std::filesystem::path& file);
  bool has_rows_for_samples();
  std::vector<int> parts_in(const TrialModel& model, const Draft& draft);
  void split_group_errors(const Draft& draft, const std::vector<Trial>& alone, const std::vector<TrialResult>& near,
                          Sensitivities& measured);

  run::Context context() const;

  TrialEnv env_;
  std::string_view purpose_ = "as rounded";
  std::optional<run::ContentOrderedSamples> source_;
  std::optional<TrialRunner> runner_;
  std::vector<int> parts_;
  std::optional<TrialResult> judged_;
  std::optional<graph::ValueTypes> static_types_;
  std::optional<double> float_score_;
  run::FloatResults float_results_;
};

// What the stages behind calibration take, told before the run: so that a plan names the peak of the whole run, and a
// run under a budget leaves out at its start what would not keep to it.

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
