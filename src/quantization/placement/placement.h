// Where Q/DQ pairs go: decided from the graph alone, before anything is calibrated. The rules are those of ONNX
// Runtime 1.31's quantize_static (QDQ format); where they differ on purpose, docs/placement.md says why.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "calibration/statistics.h"
#include "detent/config.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/blocks/blocks.h"
#include "quantization/formats.h"
#include "quantization/weights.h"

namespace detent::quantization {

/// A value that gets quantized.
struct Mark {
  std::string value;
  bool is_constant = false;              // an initializer: stored as integers
  bool is_weight = false;                // a constant of the weight type; others have the activation type
  Granularity granularity;               // of constants
  std::optional<std::string> shares;     // takes scale and zero point from this value
  bool float_readers_unrounded = false;  // nodes in float read the value as it was made, not its integers
  bool wide = false;                     // 16 bits, whatever QuantConfig::activation_type says; never of weights
  /// Of weights that are kept from saturating: how each of their readers adds them up.
  std::vector<Summation> paired = {};
  bool centred = false;  // has a sign and the zero point 0, whatever QuantConfig says of activations; never of weights
  bool narrow = false;   // a centred one uses 7 of its 8 bits
};

/// A bias that becomes int32 with scale = alpha * input scale * weight scale.
struct BiasMark {
  std::size_t node = 0;
  std::string bias, input, weight;
  float beta = 1;  // Gemm multiplies the bias by it; it is folded into the integers
  /// Gemm multiplies the product by it; ONNX Runtime before 1.28 adds the integers of the bias to those of the product.
  float alpha = 1;
  /// It is written as a float, and ONNX Runtime makes the integers when it loads the model.
  bool stays_float = false;
};

/// A Relu or Clip between a quantized operator and its only reader. The pair goes after it; where the integers saturate
/// at the same bounds, the node itself is not needed any more.
struct FusedActivation {
  std::size_t node = 0;
  std::string input, output;
  float low = 0;
  float high = 0;
  bool removable = false;
};

/// What a result tells of the nodes.
struct NodeCounts {
  std::size_t quantized = 0;       // that get another form
  std::size_t in_float = 0;        // that could have it
  std::vector<std::string> notes;  // which stay, and why
};

/// What becomes of a float model, as the placer of a form decides it; of pairs run::count_nodes() counts.
struct Placement : NodeCounts {
  std::vector<bool> selected;    // nodes that compute in the form
  std::set<std::string> stored;  // by Node::id(): nodes in float that get weights of store_weights() (emit/dynamic.h)

  // Integers.
  std::vector<Mark> marks;  // in the order in which pairs are made
  std::vector<BiasMark> biases;
  std::vector<FusedActivation> fused;
  /// Ranges that follow from the operator, as of Softmax.
  calibration::Ranges fixed_ranges;
  /// Values whose range is at least so wide.
  std::map<std::string, float> least_spans;
  /// Values that take the statistics of another value, see selection.h.
  std::map<std::string, std::string> inherits;
  /// Values that have a scale of another one only because what joins them wants one for all.
  std::vector<std::string> joined;

  // Weights in blocks.
  std::vector<BlockTensor> tensors;  // in the order of their first reader
  /// Transpose nodes between a weight and products that read it in blocks; none reads their results any more.
  std::vector<std::size_t> transposes;

  // 16-bit floats.
  FloatType float_type = FloatType::float16;  // float16 or bfloat16
  bool keep_io_types = true;

  /// The mark of `value`, or null.
  const Mark* find(const std::string& value) const;
  /// The mark whose scale and zero point this one has: itself, unless it shares them.
  const Mark& root_of(const Mark& mark) const;
  /// The value whose statistics give the range of `value`.
  const std::string& source_of(const std::string& value) const;
  /// Values whose statistics calibration must find, each once, in the order of the marks that need them.
  std::vector<std::string> to_observe() const;
};

/// What stays in float although its operator could be quantized.
struct FloatParts {
  std::vector<bool> nodes;       // one flag for each node, or empty
  std::set<std::string> values;  // these and what shares their scale
  /// What a node in float made is read as it is by other nodes in float, and as integers by quantized nodes only.
  bool bypass = false;
  /// Of each node, or empty: what it reads and makes, but for its weights, gets 16 bits, and so does all that shares a
  /// scale with that.
  std::vector<bool> wide_nodes;
  /// It is no error when nothing is left to quantize.
  bool may_be_all = false;
};

/// Constants that are the transpose of another one, and that one.
using TransposedConstants = std::map<std::string, std::string>;

/// Gives those of them that are weights the scales of the other one. The channels of a matrix lie along the other axis
/// of its transpose; where readers want both, there is one scale for all.
void share_transposed(const TransposedConstants& transposed, std::vector<Mark>& marks);

/// Q/DQ came with opset 10, their per-axis form with 13, floats of 8 bits and scales of 16 with 19.
std::int64_t needed_opset(const QuantConfig& config) noexcept;

/// Where ONNX Runtime's CPU is the target, constants of `transposed` have the scales of those that they are the
/// transpose of, so that the integers of both can be stored once. Throws usage for selections that match nothing,
/// bad_input when the model is quantized already or, unless that may be, holds nothing to quantize.
Placement place(const onnx::Model& model, const graph::ValueTypes& types, const QuantConfig& config,
                const FloatParts& floats = {}, const TransposedConstants& transposed = {});

// What a target wants of several values together: one scale for all that an operator joins, no pair within a fused sum.

}  // namespace detent::quantization
