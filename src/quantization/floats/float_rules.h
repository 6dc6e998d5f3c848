// What 16-bit floating point means to each operator type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "calibration/statistics.h"
#include "detent/config.h"
#include "graph/index.h"
#include "graph/operators.h"
#include "onnx/model.h"

namespace detent::quantization {

using graph::FloatRule;
using graph::FloatTrait;

/// Whether a mask of a FloatRule has the input or output.
inline bool in_mask(std::uint16_t mask, std::size_t position) { return position < 16 && (mask >> position & 1U) != 0; }

/// Null for operators that stay in float32: those with no such type in their schema, those that no GPU has kernels of
/// (the list in ONNX Runtime's transformers/float16.py), those whose type an attribute says, MeanVarianceNormalization,
/// whose function in the schema adds float32 to any type, and unknown ones.
const FloatRule* float_rule(const onnx::Node& node) noexcept;

// What a 16-bit floating-point type can hold of a model's values.

/// Values may be 4 times as large as any that was seen.
inline constexpr double kFloatMargin = 4;

/// A reason against constants.
inline constexpr const char* kTooSmall = "a constant is too small for the type";

/// How a node uses a constant.
struct ConstantUse {
  bool divisor = false;   // no element may vanish, not just the largest
  bool bound = false;     // it may become infinite
  bool additive = false;  // a small one is there to be more than nothing: its digits do not matter
};

/// The smallest number of the type that is not below a positive one; that one itself where there is none.
float rounded_up(float value, FloatType type) noexcept;

/// Each question is answered by why it cannot be: a clause for "stays in float32, since …"; empty where it can.
class FloatRange {
 public:
  /// All must outlive this; `statistics` may be null.
  FloatRange(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types, FloatType type,
             const calibration::Statistics* statistics);

  std::string reason_against_value(const std::string& value) const;
  /// Whether values are all of one sign, and some so small that the type makes zeros of them or of most of their
  /// digits; nothing where no samples tell.
  std::optional<bool> vanishes(const std::string& value) const;
  /// Of a float32 initializer.
  std::string reason_against_constant(const std::string& name, const ConstantUse& use) const;
  /// Of what a DequantizeLinear makes of a constant.
  std::string reason_against_stored(const onnx::Node& node) const;
  /// Of a value that holds whole numbers.
  std::string reason_against_integers(const std::string& value) const;
  /// Of the node's attribute of that name, where it has one.
  std::string reason_against_epsilon(const onnx::Node& node) const;
  /// Of the sums that arise in the node.
  std::string reason_against_sums(const onnx::Node& node, FloatTrait trait) const;

 private:
  struct Magnitudes {
    float smallest = 0;  // but zeros
    float largest = 0;   // but infinities
    double noise = 0;    // of rounding, as a share of the sum of squares
    bool single = false;
  };
  const Magnitudes& magnitudes(const std::string& constant) const;
  const calibration::KeyRange* extremes_of(const std::string& value) const;
  std::optional<double> largest(const std::string& value) const;
  std::optional<double> largest_sum(const onnx::Node& node, FloatTrait trait) const;
  /// How many values each sum of the node adds up.
  std::optional<double> summands(const onnx::Node& node) const;
  std::optional<std::vector<std::int64_t>> axes(const onnx::Node& node, std::size_t rank) const;
  bool loses(float value, double tolerance) const noexcept;

  const onnx::Model& model_;
  const graph::Index& index_;
  const graph::ValueTypes& types_;
  FloatType type_;
  const calibration::Statistics* statistics_;
  mutable std::unordered_map<std::string, Magnitudes> constants_;
};

}  // namespace detent::quantization
