// Parts of networks that are recognized by their form: attention with a cache, its masks, front ends of audio models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "graph/index.h"
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

// What is added to attention scores before a Softmax so that it gives 0: -10000, -1e9, the lowest float, -infinity.

/// Values that only a Softmax reads, at once or by way of sums, choices (Where) and what moves or scales values; each
/// after those that read it.
std::vector<std::string> attention_scores(const onnx::Model& model, const Index& index);

/// A mask at or below this gives 0 behind a Softmax, with any scores that a model makes.
inline constexpr float kMask = -1e4F;

// Products that a model makes features of before anything learned: a Fourier transform and filters over its powers, in
// front of a logarithm.

/// What ends a front end.
enum class FrontEnds : std::uint8_t {
  all,         ///< logarithms, divisions, powers other than roots, normalizations
  logarithms,  ///< logarithms and powers: no model that learns from its first layer on has them
};

/// The nodes, by position, up to a logarithm, a division or a power that makes small values large, if there are
/// products among them. Before it are sums, products of values, powers, and what moves values, but no function that a
/// network learns with. Nodes must be in topological order.
std::set<std::size_t> front_end(const onnx::Model& model, const Index& index, FrontEnds which = FrontEnds::all);

}  // namespace detent::graph
