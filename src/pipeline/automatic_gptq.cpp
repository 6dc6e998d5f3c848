#include "pipeline/automatic_gptq.h"

#include "accuracy/fake_quantizer.h"
#include "pipeline/refine.h"
#include "tuning/finetune.h"
#include "tuning/tuned_layer.h"

namespace detent::pipeline {
namespace {

// Below this share of the error the results gain too little for what gptq takes.
constexpr double kWorthTuning = 0.25;

accuracy::Roundings tuned_roundings(const run::Prepared& prepared, const WeightTrial& trial) {
  auto roundings = accuracy::roundings_of(trial.params);
  std::vector<std::string> said_before;
  for (const auto& layer : tuning::find_layers(prepared.model, trial.tuned, trial.config, said_before)) {
    const auto& weight = prepared.model.graph.initializers[layer.float_weight].name;
    const auto& data = trial.tuned.graph.initializers[layer.stored_weight].data;
    if (!data.is_produced()) roundings.at(weight).integers = data;
  }
  return roundings;
}

}  // namespace

FinetuneConfig automatic_gptq(const FinetuneConfig& given) {
  FinetuneConfig config;
  config.rounding = Rounding::gptq;
  config.op_types = given.op_types;
  config.nodes = given.nodes;
  return config;
}

bool wants_tuned_weights(const AccuracyResult& measured, std::uint64_t samples) {
  return samples >= tuning::kHeldBackEvery && is_far(measured) && measured.weights_share >= kWorthTuning;
}

void judge_tuned_weights(const run::Prepared& prepared, const WeightTrial& trial, const exec::Runtime& runtime,
                         data::SampleSource& source, const TrialRunnerOptions& options, AccuracyResult& result) {
  const auto nearest = accuracy::roundings_of(trial.params);
  const auto tuned = tuned_roundings(prepared, trial);
  const std::vector<accuracy::Trial> both{accuracy::trial_of(nearest), accuracy::trial_of(tuned)};
  const auto judged = TrialRunner(prepared, runtime, source, options)
                          .run(trial.placement, trial.params, both, spread_over(trial.samples, result.samples));
  result.tuned = {typical_error_of(judged[0]), typical_error_of(judged[1])};
  result.tuned->kept = result.tuned->error_after < result.tuned->error_before;
  if (!result.tuned->kept) return;
  result.sqnr_db = worst_sqnr_db(judged[1]);
  result.cosine = worst_cosine(judged[1]);
}

}  // namespace detent::pipeline
