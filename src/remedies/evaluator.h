// Where drafts are measured: the float model runs with values rounded as a draft would store them, on some of the
// samples, and its results are compared with those of the float model alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "detent/quantize.h"
#include "exec/session.h"
#include "profile/device_activity.h"
#include "profile/profiler.h"
#include "remedies/draft.h"
#include "remedies/fake_quantizer.h"
#include "remedies/trial_runner.h"
#include "run/calibration_device.h"
#include "run/comparison/deployed_fidelity.h"
#include "run/comparison/float_runs.h"
#include "run/context.h"
#include "run/samples/content_order.h"

namespace detent::remedies {

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
  /// What the float model gives on the judging samples, where that takes little: for others who compare on them.
  run::KeptFloatRuns& float_runs() { return float_runs_; }

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

  static constexpr std::uint64_t kKeptBytes = std::uint64_t{4} << 20;

  TrialEnv env_;
  std::string_view purpose_ = "as rounded";
  std::optional<run::ContentOrderedSamples> source_;
  std::optional<TrialRunner> runner_;
  References references_;
  std::vector<int> parts_;
  std::optional<TrialResult> judged_;
  std::optional<graph::ValueTypes> static_types_;
  std::optional<double> float_score_;
  run::KeptFloatRuns float_runs_{.limit = kKeptBytes};
};

}  // namespace detent::remedies
