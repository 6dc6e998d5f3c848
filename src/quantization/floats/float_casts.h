// Casts that a choice of float types takes: how many, and how to have fewer.
#pragma once

#include <cstddef>
#include <vector>

#include "graph/index.h"
#include "graph/values.h"
#include "onnx/model.h"

namespace detent::quantization {

/// Moves nodes that are `light` from 16 bits (a flag in `low`) to float32 where that takes fewer casts, alone or with
/// the light nodes around them; returns which.
std::vector<std::size_t> merge_islands(const onnx::Model& model, const graph::ValueTypes& types,
                                       const graph::Index& index, bool keep_io_types, const std::vector<bool>& light,
                                       std::vector<bool>& low);

}  // namespace detent::quantization
