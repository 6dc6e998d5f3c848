// Better integers for the weights of an emitted draft.
#pragma once

#include <string>
#include <vector>

#include "detent/quantize.h"
#include "remedies/evaluator.h"

namespace detent::remedies {

struct TunedModel {
  onnx::Model model;  // the emitted one with tuned weights
  std::vector<LayerTuning> layers;
  std::vector<std::string> notes;
};

/// Fine-tunes the draft's emitted model. `asked_for`: whether the user did; what nobody asked for keeps the run's peak
/// near that of inference. Throws what solve::finetune() throws.
TunedModel tune_weights(const Draft& draft, Evaluator& evaluator, FinetuneConfig config, bool asked_for);

/// Whether results as far as this from the float model's may be worth tuning that nobody asked for.
bool may_need_tuning(Evaluator& evaluator, double worst_error);

/// The configuration for tuning that nobody asked for: options of other methods do not count.
FinetuneConfig automatic_gptq(const FinetuneConfig& given);

}  // namespace detent::remedies
