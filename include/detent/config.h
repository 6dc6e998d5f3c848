// How tensors are to be quantized.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace detent {

/// Integer types of quantized tensors.
enum class QuantType { int8, uint8, int16, uint16 };

/// How tensors are quantized. The defaults are the target `ort-cpu`.
struct QuantConfig {
  QuantType activation_type = QuantType::uint8;
  QuantType weight_type = QuantType::int8;
  /// Zero point in the middle of the integer range, scale from the larger of |min| and |max|.
  bool activation_symmetric = false;
  /// Unset: symmetric for signed weight types.
  std::optional<bool> weight_symmetric;
  /// One scale for each output channel of a weight instead of one for the tensor.
  bool per_channel = true;
  /// Weights use 7 of 8 bits; for CPUs whose 8-bit products saturate at 16 bits (x86 before VNNI).
  bool reduce_range = false;

  /// Operator types to quantize; empty: all that detent knows how to place.
  std::vector<std::string> op_types;
  std::vector<std::string> exclude_op_types;
  /// Node names, or regular expressions (ECMAScript, matched against the whole name) when they start with '^'. A node
  /// without a name goes by its first output. Empty `nodes`: all.
  std::vector<std::string> nodes;
  std::vector<std::string> exclude_nodes;
};

}  // namespace detent
