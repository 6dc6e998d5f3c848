// All that is known of each operator type, in one row: what traits.h asks, what 16-bit floats and integers make of it,
// which of its inputs are weights or decide, and the lists of passes and targets that it is on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "graph/traits.h"
#include "onnx/model.h"

namespace detent::graph {

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

/// The axes along which an operator sums, where it does.
enum class SumAxes : std::uint8_t {
  listed,     ///< its attribute or second input `axes`; all without
  spatial,    ///< all behind the channels
  from_axis,  ///< from its attribute `axis` on
  one,        ///< its attribute `axis`
  but_batch,  ///< all but the first
};

/// Opsets are those of the operator's domain from which on the schema allows the type for every float input and output
/// that the masks do not name: those of onnx 1.23 (tests/e2e/test_float_rules.py compares them).
struct FloatRule {
  static constexpr std::int8_t kNever = 127;

  std::int8_t float16_from = kNever;
  std::int8_t bfloat16_from = kNever;
  FloatTrait trait = FloatTrait::none;
  SumAxes axes = SumAxes::listed;
  std::uint16_t float32_inputs = 0;   ///< bit i: input i stays float32
  std::uint16_t float32_outputs = 0;  ///< likewise
  std::uint16_t divisors = 0;         ///< inputs of which no value may vanish
  std::uint16_t bounds = 0;           ///< inputs that may become infinite
};

/// An operator of the runtime that takes the place of another one, with its attributes: those that it honours with any
/// value, or ("name=1") with one alone, or ("name==1") with one that has to be given.
struct Exchange {
  std::string_view type = {}, attributes = {};
};

/// How the inputs of an integer operator follow one another.
enum class IntegerInputs : std::uint8_t {
  none,       ///< there is no such operator
  product,    ///< each input, then scale and zero point of the result, then the bias
  gemm,       ///< each input, the bias, then the result
  plain,      ///< each input, then the result
  concat,     ///< the result, then each input
  where,      ///< the condition, each other input, then the result
  handed_on,  ///< the operator itself reads one value and hands on its integers
};

/// The operator on integers of the QOperator form.
struct IntegerForm {
  Exchange operation = {};
  IntegerInputs inputs = IntegerInputs::none;
  bool contrib = true;  // of com.microsoft
};

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

/// Weights that can be stored alone: with dynamic activations, or in blocks.
struct WeightOperator {
  std::size_t first_weight = 1, weights = 0;  // inputs that are weights; 0: none
  std::size_t rank = 2;                       // of each; 0: three or more
  DynamicWeights dynamic = DynamicWeights::no;
  BlockWeights blocks = BlockWeights::no;
  Exchange exchange = {};  // with integers; none: an operator of the same attributes
};

/// Which inputs say how many elements the results have, bit i: input i; and which choose elements of another.
struct DecidingInputs {
  std::uint16_t sizes = 0;
  std::uint16_t choices = 0;
};

/// Inputs; 0: it has none.
struct NormInputs {
  std::uint8_t gain = 0;
  std::uint8_t beta = 0;  // added to the result
  std::uint8_t bias = 0;  // added, with a second value, to what is normalized
};

/// Lists of operators that passes and targets keep.
enum class List : std::uint32_t {
  no_list = 0,
  leaps = 1U << 0,            ///< results change by leaps where what it reads changes a little
  sums = 1U << 1,             ///< in a front end: sums up, or computes as simply
  bounds = 1U << 2,           ///< cuts values off
  logarithms = 1U << 3,       ///< ends a front end
  divides = 1U << 4,          ///< the same, by making small values large
  moves_scores = 1U << 5,     ///< moves scores of attention, beside what rearranges them
  takes_parts = 1U << 6,      ///< picks parts of its first input
  in_all_opsets = 1U << 7,    ///< is written the same way in every opset that detent writes
  infinities = 1U << 8,       ///< hands infinite values on
  carries_pairs = 1U << 9,    ///< ONNX Runtime's optimizer carries integers over it
  in_double = 1U << 10,       ///< ONNX Runtime's CPU has a float64 kernel for it
  adds = 1U << 11,            ///< Add and Sub
  averages = 1U << 12,        ///< means over windows
  decides_itself = 1U << 13,  ///< how many results there are follows from what it reads
  gates = 1U << 14,           ///< has results from 0 to 1 that others are multiplied with
  measures = 1U << 15,        ///< tells a shape
  picks_best = 1U << 16,      ///< tells which ones are the largest or smallest
  scatters = 1U << 17,        ///< puts its third input into its first
  // OpenVINO's CPU plugin.
  openvino_moves = 1U << 18,  ///< the scale moves behind what only moves values
  openvino_picks = 1U << 19,  ///< and behind what picks them
  openvino_own = 1U << 20,    ///< element-wise, with a kernel of its own: is not computed in a row with others
  openvino_along = 1U << 21,  ///< products take it along
  openvino_alone = 1U << 22,  ///< element-wise, but does not stand between two products
};

constexpr List operator|(List a, List b) noexcept {
  return static_cast<List>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}

/// One operator type.
struct Operator : OperatorTraits {
  FloatRule floats = {};
  List lists = List::no_list;
  IntegerForm integers = {};
  WeightOperator weights = {};
  DecidingInputs deciding = {};
  NormInputs norm = {};
};

/// All rows.
std::span<const Operator> operators() noexcept;
/// The row of the node's type; of a type without one, a row that says nothing.
const Operator& operator_of(const onnx::Node& node) noexcept;
/// Whether the operator is on the list.
bool is_on(const onnx::Node& node, List list) noexcept;

}  // namespace detent::graph
