// What fine-tuning a layer takes, and in which form it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "detent/config.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "solve/layers/form_cost.h"
#include "solve/layers/geometry.h"

namespace detent::solve {

/// Whether a layer is solved in mini-batches, for a configuration that config::validate() accepts: as asked, or by the
/// number of operations. A memory budget has no say, since the form decides about the result.
bool is_streamed(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples,
                 const FinetuneConfig& config, std::size_t threads);

struct LayerCost {
  std::size_t node = 0;  // of the model
  std::string name;
  bool streamed = false;
  std::uint64_t bytes = 0;  // peak, beside its spooled samples
  double flops = 0;
  LayerGeometry geometry;
  Shape input_shape;
};

/// All layers that the configuration selects and whose input shapes are static in `types`.
std::vector<LayerCost> layer_costs(const onnx::Model& model, const graph::ValueTypes& types,
                                   const FinetuneConfig& config, std::uint64_t samples, std::size_t threads);

/// Bytes that ranks get of each other, all together, where they tune a layer of so many rows: what it takes of the
/// samples that it is fitted to, blocks of its sums, and its integers.
double exchanged_bytes(const LayerCost& cost, const FinetuneConfig& config, std::uint64_t samples);

/// The one that takes most memory; there must be one.
const LayerCost& heaviest(const std::vector<LayerCost>& costs);

}  // namespace detent::solve
