// What 16-bit floating point means to each operator type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "onnx/model.h"

namespace detent::quantization {

/// Where numbers arise inside of an operator, or that need more range than its inputs.
enum class FloatTrait : std::uint8_t {
  none,
  reads_any,  ///< its inputs may be of any type, whatever its outputs are
  mean,       ///< its result is a sum divided by the number of summands
  squares,    ///< sums up squares of its first input
  root,       ///< its result is the root of a sum of squares
  logarithm,  ///< its result is the logarithm of a sum
  shares,     ///< divides by the sum of as many numbers of at most 1 as its axis is long
  grows,      ///< its result can be far larger than its inputs
};

/// One operator type. Opsets are those of its domain from which on the schema allows the type for every float input and
/// output that the masks do not name.
struct FloatRule {
  static constexpr std::int8_t kNever = 127;

  std::string_view type;
  std::int8_t float16_from = kNever;
  std::int8_t bfloat16_from = kNever;
  FloatTrait trait = FloatTrait::none;
  std::uint16_t float32_inputs = 0;   ///< bit i: input i stays float32
  std::uint16_t float32_outputs = 0;  ///< likewise
  std::uint16_t divisors = 0;         ///< inputs of which no value may vanish
  std::uint16_t bounds = 0;           ///< inputs that may become infinite
  std::string_view domain = {};
};

/// Whether a mask of a FloatRule has the input or output.
inline bool in_mask(std::uint16_t mask, std::size_t position) { return position < 16 && (mask >> position & 1U) != 0; }

/// Null for operators that stay in float32: those with no such type in their schema, those that no GPU has kernels of
/// (the list in ONNX Runtime's transformers/float16.py), those whose type an attribute says, MeanVarianceNormalization,
/// whose function in the schema adds float32 to any type, and unknown ones.
const FloatRule* float_rule(const onnx::Node& node) noexcept;

}  // namespace detent::quantization
