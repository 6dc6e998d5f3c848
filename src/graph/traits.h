// What each operator type is and does: the one table that all passes ask.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "onnx/model.h"

namespace detent::graph {

/// Yes-or-no properties of operators; a row holds a set of them.
enum class Trait : std::uint32_t {
  none = 0,
  // What it computes.
  product = 1U << 0,        ///< a convolution or matrix product, whose second input may be a weight
  convolution = 1U << 1,    ///< a product over windows, also transposed
  normalization = 1U << 2,  ///< scales and shifts by its second and third inputs
  element_wise = 1U << 3,   ///< each output element comes from the input elements at its place; keeps the shape but for
                            ///< broadcasting, so that a runtime may write over an input of the same size
  clips = 1U << 4,          ///< cuts values at bounds and changes no others
  looks_up = 1U << 5,       ///< picks rows of its first input by index: an embedding where that is a constant
  random = 1U << 6,         ///< the result is not the same each time
  quantized = 1U << 7,      ///< computes on integers that stand for reals, or converts to or from them
  // Where values go.
  renames = 1U << 8,        ///< the output is the first input under another shape; runtimes give it the same memory
  rearranges = 1U << 9,     ///< each value of the input goes to exactly one place of the output
  joins = 1U << 10,         ///< all inputs carry data, not the first alone
  shares_scale = 1U << 11,  ///< what it makes lies in the range of its first input, so that one scale serves both
  // What runtimes do.
  carries_integers = 1U << 12,  ///< runs on integers without an error that matters, or has a kernel in ONNX Runtime
                                ///< that does
  overwrites = 1U << 13,        ///< ONNX Runtime's CPU kernel may write over the first input
  by_default = 1U << 14,        ///< ONNX Runtime's quantize_static quantizes it unless told otherwise
  recurrent = 1U << 17,         ///< LSTM, GRU and RNN, whose weights are the second and third inputs
  quantizes = 1U << 18,         ///< QuantizeLinear of either domain
  dequantizes = 1U << 19,       ///< DequantizeLinear of either domain
  // How its errors are judged.
  has_response = 1U << 15,      ///< smooth enough for a table of its results to tell how much of a rounding is seen
  judged_by_inputs = 1U << 16,  ///< its inputs tell more of an error than its output does
};

constexpr Trait operator|(Trait a, Trait b) noexcept {
  return static_cast<Trait>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}

/// How work_of() counts operations.
enum class Counting : std::uint8_t {
  per_output,  ///< one for each output element
  per_input,   ///< one for each element of the first input
  per_window,  ///< one for each output element and element of the kernel
  macs,        ///< two for each multiply-accumulate, one for each output element with a bias
  moves,       ///< none: it only moves data
  free,        ///< none, and no traffic either
};

/// One operator type.
struct OperatorTraits {
  static constexpr std::int8_t kNoInput = -1;

  std::string_view type;
  Trait traits = Trait::none;
  Counting counting = Counting::per_output;
  std::int8_t bias = kNoInput;      // the input that may be a bias
  std::int8_t opset_of_8_bits = 0;  // it takes 8-bit types from this opset on
  std::string_view domain = {};

  constexpr bool is(Trait trait) const noexcept {
    return (static_cast<std::uint32_t>(traits) & static_cast<std::uint32_t>(trait)) != 0;
  }
};

/// All rows, grouped by what the operators do.
std::span<const OperatorTraits> all_traits() noexcept;

/// The row of the node's type. Types without a row have no traits and count as one operation for each output element.
const OperatorTraits& traits_of(const onnx::Node& node) noexcept;

inline bool has_trait(const onnx::Node& node, Trait trait) noexcept { return traits_of(node).is(trait); }

/// A convolution or matrix product: where the multiplications are.
inline bool is_product(const onnx::Node& node) noexcept { return has_trait(node, Trait::product); }
inline bool is_matrix_product(const onnx::Node& node) noexcept {
  const auto& traits = traits_of(node);
  return traits.is(Trait::product) && !traits.is(Trait::convolution);
}

inline bool is_convolution(const onnx::Node& node) noexcept { return has_trait(node, Trait::convolution); }
inline bool is_recurrent(const onnx::Node& node) noexcept { return has_trait(node, Trait::recurrent); }

/// The two halves of a Q/DQ pair.
inline bool is_quantize_linear(const onnx::Node& node) noexcept { return has_trait(node, Trait::quantizes); }
inline bool is_dequantize_linear(const onnx::Node& node) noexcept { return has_trait(node, Trait::dequantizes); }
inline bool is_q_or_dq(const onnx::Node& node) noexcept {
  return has_trait(node, Trait::quantizes) || has_trait(node, Trait::dequantizes);
}

/// The input that holds the weight of a product or the scale of a normalization.
inline constexpr std::size_t kWeightInput = 1;

/// The axis of that input, which has `rank` of them, along which the channels of the output lie; nullopt where there is
/// none: of other operators, of a vector that a matrix is multiplied with, and of matrices in batches.
std::optional<std::size_t> channel_axis(const onnx::Node& node, std::size_t rank);

// Rows of facts about operators, found by the operator of a node.

/// Row has the members `domain` and `type`. Made when the program is compiled: it takes no memory when it is first
/// used.
template <class Row, std::size_t kCount>
class OperatorTable {
 public:
  constexpr explicit OperatorTable(const std::array<Row, kCount>& rows) : rows_(rows) {
    std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return key_of(a) < key_of(b); });
  }

  /// Null when the table has no such operator.
  const Row* find(const onnx::Node& node) const noexcept {
    const Key key{node.op_type(), node.domain()};
    const auto found = std::lower_bound(rows_.begin(), rows_.end(), key,
                                        [](const Row& row, const Key& wanted) { return key_of(row) < wanted; });
    return found == rows_.end() || key_of(*found) != key ? nullptr : &*found;
  }

 private:
  using Key = std::pair<std::string_view, std::string_view>;
  static constexpr Key key_of(const Row& row) { return {row.type, row.domain}; }

  std::array<Row, kCount> rows_;
};

}  // namespace detent::graph
