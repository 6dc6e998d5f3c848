// Operators that read weights, and how weights alone are stored for each: with dynamic activations, and in blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "onnx/model.h"

namespace detent::quantization {

/// Whether a node can have integer weights and activations whose scales are found at each run.
enum class DynamicWeights : std::uint8_t {
  no,
  yes,
  where_named,  ///< slower than in float: only where the user names the operator or the node
};

/// How a node reads weights in blocks.
enum class BlockWeights : std::uint8_t {
  no,
  product,    ///< MatMulNBits, or DequantizeLinear before it
  table,      ///< GatherBlockQuantized
  filter,     ///< DequantizeLinear before a convolution
  recurrent,  ///< DequantizeLinear before a recurrent layer
  experts,    ///< QMoE
};

struct WeightOperator {
  std::string_view type;
  std::size_t first_weight = 1, weights = 1;  // inputs that are weights
  std::size_t rank = 2;                       // of each; 0: three or more
  DynamicWeights dynamic = DynamicWeights::no;
  std::string_view dynamic_operator = {};  // takes over the attributes, if there are any
  BlockWeights blocks = BlockWeights::no;
};

/// Null of other operators.
const WeightOperator* weight_operator(const onnx::Node& node) noexcept;

/// In the order of their names, for messages.
std::vector<std::string> types_with_dynamic_weights();
std::vector<std::string> types_with_block_weights();

}  // namespace detent::quantization
