// What each form of a layer's problem costs, so that the cheaper can be chosen before anything runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "detent/config.h"
#include "solve/layers/patches.h"

namespace detent::solve {

struct FormCost {
  /// Multiplications and additions. Work on single elements is counted as the products that take as long.
  double flops = 0;
  /// Peak of memory while the layer is solved, beside its weights and what is stored of its samples.
  std::uint64_t bytes = 0;
};

/// Accumulating the form from `samples` inputs of this shape, and solving it. Of the rounding's numbers unset ones take
/// their defaults.
FormCost gram_cost(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples,
                   const FinetuneConfig& config, std::size_t threads);

/// Solving in mini-batches of config.batch_size samples, and descent on positions of all samples.
FormCost streamed_cost(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples,
                       const FinetuneConfig& config, std::size_t threads);

/// Whether layers can be solved from sums over their samples: all inputs have to come from the quantized branch.
bool has_gram_form(const FinetuneConfig& config);

}  // namespace detent::solve
