// Products of few rows, one behind the other, of which OpenVINO makes one kernel (2026.4.1).
#pragma once

#include <unordered_map>

#include "graph/index.h"
#include "graph/values.h"
#include "onnx/model.h"

namespace detent::checking {

/// `floats`: the kernel is named one of floats, since it quantizes the first one's input itself. `wrong`: it reads what
/// it never wrote, since QuantizeLinear takes a product's zero point along where neither a bias nor an activation but
/// Relu stands between.
enum class ChainOutcome { integers, floats, wrong };

/// What becomes of the products that OpenVINO joins, by their positions.
std::unordered_map<int, ChainOutcome> outcome_of_chained_products(const onnx::Model& model, const graph::Index& index,
                                                                  const graph::ValueTypes& types);

}  // namespace detent::checking
