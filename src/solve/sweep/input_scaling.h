// Factors for what products read, chosen by the sums over samples and kept where they help samples that are held back.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "onnx/model.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/blocks/input_folds.h"
#include "solve/sweep/gram_sweep.h"
#include "solve/sweep/weight_solving.h"

namespace detent::solve {

struct InputScaling {
  std::vector<float> factors;  // that rows of weights are multiplied by; empty: none help
  double exponent = 0;         // of AWQ: factors are the power of the inputs to half of it
};

/// What inputs are that have been divided by factors, which are referred to.
InputGrams grams_of_scaled_inputs(const InputGrams& grams, std::span<const float> factors);

/// best_input_scales() for all weights that read an input, by some columns of each; these factors and their
/// roots are tried with the method itself, and what leaves the least error on held-back samples is taken. Weights of
/// different bits are not scaled.
InputScaling choose_scaling(const onnx::Model& model, const quantization::BlockPlacement& placement,
                            const quantization::InputFold& fold, const InputGrams& grams,
                            const WeightSolvingOptions& options);

/// Folds that the method makes use of: with awq and automatic those that there are. Sparse weights are not scaled.
std::vector<quantization::InputFold> folds_of(const onnx::Model& model, const quantization::BlockPlacement& placement,
                                              const WeightsOnlyConfig& config);

/// Writes a choice, and reads it again.
void save_scaling(const std::filesystem::path& path, const InputScaling& scaling);
InputScaling load_scaling(const std::filesystem::path& path, std::int64_t rows);

}  // namespace detent::solve
