// Where a decoder keeps the keys and values of earlier positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "onnx/model.h"

namespace detent::graph {

/// A GroupQueryAttention that takes earlier keys and values from graph inputs and hands all of them to graph outputs.
struct CachedAttention {
  std::size_t node = 0;
  std::int64_t layer = 0;  // the number in the name of its keys; where there is none, its place in the model
  std::string past_key, past_value;
  std::string present_key, present_value;
  std::int64_t heads = 0, head_size = 0;  // of keys and values
  /// The first so many channels of a key are rotated by its position, two by two; 0: none.
  std::int64_t rotated = 0;
  bool neighbours = false;  // which two: neighbours, or else one from each half
};

/// In the order of the model. Throws bad_input where there is none, and where a cache has other readers, types or
/// shapes than a quantized one can have.
std::vector<CachedAttention> cached_attentions(const onnx::Model& model);

}  // namespace detent::graph
