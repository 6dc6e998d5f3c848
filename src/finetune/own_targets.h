// What a layer's solver aims at: the outputs that the layer's own float weights give for the quantized branch's inputs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "finetune/column_form.h"
#include "finetune/geometry.h"
#include "finetune/kernels.h"
#include "finetune/problem.h"

namespace detent::finetune {

/// The float model's outputs would have the layer also undo what quantizing the layers before it has changed. How, it
/// would have to learn from the columns: of few of them it learns mostly noise, and is worse on all others.
///
/// The share of the float model's outputs in the targets where there are so many columns for each weight of an output:
/// 0 up to 24, 1/2 for 128 (64 where weights have 16 levels), and so on.
float float_share(double columns_each, std::int32_t levels = 256) noexcept;

/// GPTQ's damping there: directions that few columns show are expected to carry more than they do in these. Ten times
/// the given one for few columns, twice for 64 each, and less and less more.
double damping_for(double given, double columns_each) noexcept;

/// Columns of `samples` inputs of this shape for each weight of an output.
double columns_each(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples);

/// Outputs of weights.values for one input of this shape, in the layer's own layout; `bias` may be empty.
std::vector<float> own_outputs(const QuantizedWeights& weights, const LayerGeometry& geometry,
                               std::span<const float> bias, const Shape& input_shape, std::span<const float> input,
                               const Kernels& kernels, std::size_t threads);

struct Aim {
  float float_share = 0;
  bool best_bias = false;
  bool integers_only = false;  // nobody asks the form for errors, or for more than GPTQ's one pass
};

/// Puts them in the place of a form's targets, but for that share. With `best_bias` the mean of an output stays that of
/// the targets: a bias has nothing to overfit with. A form of columns has so few of them that the share is 0.
void aim_at_own_outputs(AnyForm& form, const QuantizedWeights& weights, std::span<const float> bias, const Aim& aim,
                        const Kernels& kernels, std::size_t threads);

}  // namespace detent::finetune
