// The targets of a layer's reconstruction. Symmetric: what the layer's float weights give for the quantized branch's
// inputs. Asymmetric: the float branch's outputs, which also compensate for the layers before. The two can be mixed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "solve/algebra/kernels.h"
#include "solve/layers/geometry.h"
#include "solve/layers/input_form.h"
#include "solve/layers/problem.h"

namespace detent::solve {

/// The share of asymmetric targets, by the number of positions for each weight of an output: 0 up to 24, 1/2 for 128
/// (64 where weights have 16 levels), and so on. With few positions, asymmetric targets make a layer overfit: errors on
/// other samples grow.
float asymmetric_share(double positions_per_weight, std::int32_t levels = 256) noexcept;

/// GPTQ's damping for that many positions: few positions underestimate the power of most directions. It is ten times
/// the given damping for the fewest positions, twice for 64 per weight, and falls towards the given one.
double damping_for(double given, double positions_per_weight) noexcept;

/// Positions of `samples` inputs of this shape, divided by the fan-in.
double positions_per_weight(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples);

/// Outputs of the float weights for one input of this shape, in the layer's layout; `bias` may be empty.
std::vector<float> symmetric_targets(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                     std::span<const float> bias, const Shape& input_shape,
                                     std::span<const float> input, const Kernels& kernels, std::size_t threads);

struct TargetMixture {
  float asymmetric_share = 0;
  bool best_bias = false;
  bool integers_only = false;  // the form is only used for one pass of a solver with takes_symmetric_form
};

/// Replaces a form's targets, which are asymmetric, by the mixture. With `best_bias` the mean of each output stays that
/// of the asymmetric targets: one number for each output cannot overfit. An input form has so few positions that the
/// share is 0.
void set_targets(GramFormOrRawInputs& form, const QuantizedWeights& weights, std::span<const float> bias,
                 const TargetMixture& aim, const Kernels& kernels, std::size_t threads);

}  // namespace detent::solve
