// Rounding::automatic: when weights are tuned without having been asked for, and whether that is kept.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data/sample.h"
#include "detent/quantize.h"
#include "onnx/model.h"
#include "pipeline/trial_runner.h"
#include "quantize/params.h"
#include "quantize/placement.h"
#include "run/prepare.h"

namespace detent::pipeline {

/// Fine-tuning that nobody asked for: options of other methods say nothing.
FinetuneConfig automatic_gptq(const FinetuneConfig& given);

/// Whether what was measured calls for it: the results are far from the float model's, weights make a good part of
/// that, and some of `samples` are held back by fine-tuning to judge by.
bool wants_tuned_weights(const AccuracyResult& measured, std::uint64_t samples);

struct WeightTrial {
  const quantization::Placement& placement;
  const quantization::Params& params;
  const onnx::Model& tuned;      // the quantized model with tuned weights
  const FinetuneConfig& config;  // of the tuning
  std::uint64_t samples = 0;     // of the source
};

/// Runs the float model with everything rounded, weights to the nearest and as they were tuned, on the samples
/// that everything was judged by before. Fills `result.tuned`, and where tuning is kept says how near the results are.
void judge_tuned_weights(const run::Prepared& prepared, const WeightTrial& trial, const exec::Runtime& runtime,
                         data::SampleSource& source, const TrialRunnerOptions& options, AccuracyResult& result);

}  // namespace detent::pipeline
