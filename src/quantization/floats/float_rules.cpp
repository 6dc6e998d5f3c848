#include "quantization/floats/float_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "graph/traits.h"
#include "onnx/packed_numbers.h"
#include "quantization/floats/half_values.h"

namespace detent::quantization {
namespace {

using enum FloatTrait;

constexpr auto kNever = FloatRule::kNever;
constexpr std::string_view kMicrosoft = "com.microsoft";

// Columns: type, float16 from opset, bfloat16 from opset, trait, float32 inputs, float32 outputs, divisors, bounds,
// domain. Opsets and masks are those of the schemas of onnx 1.23 (tests/e2e/test_float_rules.py compares them).
constexpr auto kRows = std::to_array<FloatRule>({
    {"Abs", 1, 13},
    {"Acos", 7, 22},
    {"Acosh", 9, 22},
    {"Add", 1, 13},
    {"ArgMax", 1, 13, reads_any},
    {"ArgMin", 1, 13, reads_any},
    {"Asin", 7, 22},
    {"Asinh", 9, 22},
    {"Atan", 7, 22},
    {"Atanh", 9, 22},
    {"Attention", 23, 23},
    {"AveragePool", 1, 22, mean},
    {"BatchNormalization", 1, 14, none, 0, 0, 0b10000},
    {"Cast", 1, 13, reads_any},
    {"CausalConvWithState", 27, 27},
    {"Ceil", 1, 13},
    {"Celu", 28, 28},
    {"CenterCropPad", 18, 18},
    {"Clip", 1, 13, none, 0, 0, 0, 0b110},
    {"Col2Im", 18, 18},
    {"Compress", 9, 28},
    {"Concat", 1, 13},
    {"Conv", 1, 22},
    {"ConvTranspose", 1, 22},
    {"Cos", 7, 22},
    {"Cosh", 9, 22, grows},
    {"DeformConv", 19, 22},
    {"DepthToSpace", 1, 13},
    {"DequantizeLinear", 19, 19},
    {"Div", 1, 13, none, 0, 0, 0b10},
    {"Dropout", 1, 13, none, 0b110},
    {"Einsum", 12, 28},
    {"Elu", 1, 22},
    {"Equal", 11, 13},
    {"Erf", 9, 13},
    {"Exp", 1, 13, grows},
    {"Expand", 8, 13},
    {"Flatten", 1, 13},
    {"Floor", 1, 13},
    {"GRU", 1, 22},
    {"Gather", 1, 13},
    {"GatherElements", 11, 13},
    {"GatherND", 11, 13},
    {"Gelu", 20, 20},
    {"Gemm", 1, 13},
    {"GlobalAveragePool", 1, 22, mean},
    {"GlobalLpPool", 1, 22, squares},
    {"GlobalMaxPool", 1, 22},
    {"Greater", 1, 13},
    {"GreaterOrEqual", 12, 16},
    {"GridSample", 16, 22},
    {"GroupNormalization", 18, 18, squares},
    {"HardSigmoid", 1, 22},
    {"HardSwish", 14, 22},
    {"Hardmax", 1, 13},
    {"InstanceNormalization", 1, 22, squares},
    {"Identity", 1, 13},
    {"IsInf", 20, 20, reads_any},
    {"IsNaN", 9, 13, reads_any},
    {"LRN", 1, 13, squares},
    {"LSTM", 1, 22},
    {"LayerNormalization", 17, 17, squares, 0, 0b110},
    {"LeakyRelu", 1, 16},
    {"Less", 1, 13},
    {"LessOrEqual", 12, 16},
    {"LinearAttention", 27, 27},
    {"Log", 1, 13},
    {"LogSoftmax", 1, 13, shares},
    {"LpNormalization", 1, 22, squares},
    {"LpPool", 1, 22, squares},
    {"MatMul", 1, 13},
    {"MaxPool", 1, 22},
    {"Mean", 1, 13},
    {"Mish", 18, 22},
    {"Mod", 10, 13},
    {"Mul", 1, 13},
    {"Neg", 1, 13},
    {"NonZero", 9, 13, reads_any},
    {"OneHot", 9, kNever},
    {"PRelu", 1, 16},
    {"Pad", 1, 13},
    {"Pow", 1, 15, grows},
    {"QuantizeLinear", 19, 19, none, 0, 0, 0b10},
    {"RMSNormalization", 23, 23, squares},
    {"RNN", 1, 22},
    {"Reciprocal", 1, 13},
    {"ReduceL1", 1, 13, grows},
    {"ReduceL2", 1, 13, root},
    {"ReduceLogSum", 1, 13, logarithm},
    {"ReduceLogSumExp", 1, 13, logarithm},
    {"ReduceMax", 1, 13},
    {"ReduceMean", 1, 13, mean},
    {"ReduceMin", 1, 13},
    {"ReduceProd", 1, 13, grows},
    {"ReduceSum", 1, 13, grows},
    {"ReduceSumSquare", 1, 13, grows},
    {"Relu", 1, 13},
    {"Reshape", 1, 13},
    {"Resize", 10, 13, none, 0b110},
    {"ReverseSequence", 10, 28},
    {"RotaryEmbedding", 23, 23},
    {"Round", 11, 22},
    {"ScatterElements", 11, 13},
    {"ScatterND", 11, 13},
    {"Selu", 1, 22},
    {"Shape", 1, 13, reads_any},
    {"Sigmoid", 1, 13},
    {"Sign", 9, 13},
    {"Sin", 7, 22},
    {"Sinh", 9, 22, grows},
    {"Size", 1, 13, reads_any},
    {"Slice", 1, 13},
    {"Softmax", 1, 13, shares},
    {"Softplus", 1, 22},
    {"Softsign", 1, 22},
    {"SpaceToDepth", 1, 13},
    {"Split", 1, 13},
    {"Sqrt", 1, 13},
    {"Squeeze", 1, 13},
    {"Sub", 1, 13},
    {"Sum", 1, 13},
    {"SwiGLU", 28, 28},
    {"Swish", 24, 24},
    {"Tan", 7, 22},
    {"Tanh", 1, 13},
    {"TensorScatter", 24, 24},
    {"ThresholdedRelu", 10, 22},
    {"Tile", 1, 13},
    {"Transpose", 1, 13},
    {"Trilu", 14, 14},
    {"Unsqueeze", 1, 13},
    {"Where", 9, 16},
    {"SimplifiedLayerNormalization", 1, 1, squares, 0, 0b10},

    {"Attention", 1, kNever, none, 0, 0, 0, 0, kMicrosoft},
    {"BiasGelu", 1, kNever, none, 0, 0, 0, 0, kMicrosoft},
    {"DequantizeLinear", 1, kNever, none, 0, 0, 0, 0, kMicrosoft},
    {"EmbedLayerNormalization", 1, kNever, none, 0, 0, 0, 0, kMicrosoft},
    {"FastGelu", 1, 1, none, 0, 0, 0, 0, kMicrosoft},
    {"FusedMatMul", 1, 1, none, 0, 0, 0, 0, kMicrosoft},
    {"GatherBlockQuantized", 1, 1, none, 0, 0, 0, 0, kMicrosoft},
    {"Gelu", 1, kNever, none, 0, 0, 0, 0, kMicrosoft},
    {"GroupNorm", 1, kNever, squares, 0b110, 0, 0, 0, kMicrosoft},
    {"GroupQueryAttention", 1, 1, none, 0b11'0000'0000'0000, 0, 0, 0, kMicrosoft},
    {"MatMulNBits", 1, 1, none, 0, 0, 0, 0, kMicrosoft},
    {"MultiHeadAttention", 1, kNever, none, 0, 0, 0, 0, kMicrosoft},
    {"QuantizeLinear", 1, kNever, none, 0, 0, 0b10, 0, kMicrosoft},
    {"QuickGelu", 1, 1, none, 0, 0, 0, 0, kMicrosoft},
    {"RotaryEmbedding", 1, 1, none, 0, 0, 0, 0, kMicrosoft},
    {"SkipGroupNorm", 1, kNever, squares, 0b110, 0, 0, 0, kMicrosoft},
    {"SkipLayerNormalization", 1, kNever, squares, 0, 0b110, 0, 0, kMicrosoft},
    {"SkipSimplifiedLayerNormalization", 1, kNever, squares, 0, 0b110, 0, 0, kMicrosoft},
});

}  // namespace

const FloatRule* float_rule(const onnx::Node& node) noexcept {
  static constexpr graph::OperatorTable kTable(kRows);
  return kTable.find(node);
}

namespace {

constexpr double kLargestHalf = 65504;
constexpr double kSmallestNormalHalf = 1.0 / 16384;
constexpr double kWholeNumbers = 2048, kWholeNumbersBrain = 256;  // all up to here are exact
// An epsilon may be off by a tenth. A constant that multiplies has all its digits or is wrong.
// Of several numbers, the small ones may lose digits. Where all have theirs, the noise is -73 dB.
constexpr double kNoise = 3e-7;
constexpr double kEpsilonTolerance = 0.1, kTolerance = 1.0 / 1024;

}  // namespace

float rounded(float value, FloatType type) noexcept {
  return type == FloatType::bfloat16 ? onnx::from_bfloat16(onnx::to_bfloat16(value))
                                     : onnx::from_float16(onnx::to_float16(value));
}

float rounded_up(float value, FloatType type) noexcept {
  const bool brain = type == FloatType::bfloat16;
  const auto from = brain ? onnx::from_bfloat16 : onnx::from_float16;
  auto bits = brain ? onnx::to_bfloat16(value) : onnx::to_float16(value);
  if (from(bits) < value) ++bits;  // the next larger number: exponents stand above mantissas
  return std::isfinite(from(bits)) ? from(bits) : value;
}

FloatRange::FloatRange(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                       FloatType type, const calibration::Statistics* statistics)
    : model_(model), index_(index), types_(types), type_(type), statistics_(statistics) {}

bool FloatRange::loses(float value, double tolerance) const noexcept {
  return std::abs(static_cast<double>(rounded(value, type_)) - value) > tolerance * std::abs(value);
}

std::optional<double> FloatRange::largest(const std::string& value) const {
  if (statistics_ == nullptr) return std::nullopt;
  const auto found = statistics_->tensors.find(value);
  if (found == statistics_->tensors.end() || !found->second.has_values()) return std::nullopt;
  const auto& extremes = found->second.extremes;
  return std::max(std::abs(static_cast<double>(extremes.lowest())), std::abs(static_cast<double>(extremes.highest())));
}

std::string FloatRange::reason_against_value(const std::string& value) const {
  const auto magnitude = largest(value);
  if (!magnitude || type_ == FloatType::bfloat16) return {};
  if (*magnitude > kLargestHalf / kFloatMargin)
    return fmt::format("their values pass {} (the largest float16 by {})", kLargestHalf / kFloatMargin, kFloatMargin);
  if (*magnitude > 0 && *magnitude < kFloatMargin * kSmallestNormalHalf)
    return "their values are all so small that float16 has few digits for them";
  return {};
}

const FloatRange::Magnitudes& FloatRange::magnitudes(const std::string& constant) const {
  const auto [it, added] = constants_.try_emplace(constant);
  if (!added) return it->second;
  const auto& tensor = model_.graph.initializers[static_cast<std::size_t>(index_.initializer(constant))];
  Rounding16Sums sums(type_);
  onnx::for_each_float(tensor.data, [&](std::span<const float> values, std::int64_t) { sums.add(values); });
  const auto found = sums.sums();
  it->second = {found.smallest, found.largest, found.squares > 0 ? found.errors / found.squares : 0,
                tensor.count() == 1};
  return it->second;
}

std::string FloatRange::reason_against_constant(const std::string& name, const ConstantUse& use) const {
  const auto& m = magnitudes(name);
  if (!use.bound && std::isinf(rounded(m.largest, type_))) return "a constant is too large for the type";
  if (type_ == FloatType::bfloat16) return {};
  const double tolerance = use.additive || use.bound ? kEpsilonTolerance : kTolerance;
  const bool vanishes = m.single && std::isfinite(rounded(m.largest, type_)) && loses(m.largest, tolerance);
  const bool faint = !m.single && !use.additive && !use.bound && m.noise > kNoise;
  if (vanishes || faint || (use.divisor && loses(m.smallest, kTolerance)))
    return "a constant is too small for the type";
  return {};
}

std::string FloatRange::reason_against_stored(const onnx::Node& node) const {
  if (!graph::is_dequantize_linear(node) || type_ == FloatType::bfloat16) return {};
  const int stored = index_.initializer(node.inputs()[0]);
  if (stored == graph::kNone || index_.initializer(node.inputs()[1]) == graph::kNone) return {};
  const auto type = model_.graph.initializers[static_cast<std::size_t>(stored)].type;
  const double reach = type == onnx::DataType::float8e4m3fn ? onnx::kFloat8E4M3FN.largest
                       : type == onnx::DataType::float8e5m2
                           ? onnx::kFloat8E5M2.largest
                           : std::ldexp(1.0, static_cast<int>(onnx::bits_of(type))) - 1;
  return reach * magnitudes(node.inputs()[1]).largest > kLargestHalf ? "a constant is too large for the type" : "";
}

std::string FloatRange::reason_against_integers(const std::string& value) const {
  const double limit = type_ == FloatType::bfloat16 ? kWholeNumbersBrain : kWholeNumbers;
  const auto magnitude = largest(value);
  if (!magnitude) return "they make floats of integers, and nothing is known of these without samples";
  return *magnitude > limit ? fmt::format("they make floats of integers beyond {}", limit) : std::string();
}

std::string FloatRange::reason_against_epsilon(const onnx::Node& node) const {
  const auto* epsilon = node.attribute("epsilon");
  if (epsilon == nullptr || type_ == FloatType::bfloat16) return {};
  return loses(epsilon->as_float(), kEpsilonTolerance) ? "their epsilon is too small for the type" : "";
}

std::string FloatRange::reason_against_sums(const onnx::Node& node, FloatTrait trait) const {
  using enum FloatTrait;
  if (trait == none || trait == reads_any || type_ == FloatType::bfloat16) return {};
  if (trait == grows) return largest(node.outputs().at(0)) ? "" : "their results may be large, and no samples tell";
  const auto sum = largest_sum(node, trait);
  if (!sum) return trait == shares ? "" : "how large sums get is not known";
  if (*sum > kLargestHalf / kFloatMargin) return fmt::format("sums may exceed {}", kLargestHalf / kFloatMargin);
  return {};
}

std::optional<double> FloatRange::largest_sum(const onnx::Node& node, FloatTrait trait) const {
  using enum FloatTrait;
  const auto result = largest(node.outputs().at(0));
  if (trait == root && result) return *result * *result;
  if (trait == logarithm && result) return std::exp(*result);
  const auto count = summands(node);
  if (trait == shares) return count;
  if (trait == mean && result && count) return *count * *result;
  const auto input = largest(node.inputs().at(0));
  if (trait == squares && input && count) return *count * *input * *input;
  return std::nullopt;
}

std::optional<std::vector<std::int64_t>> FloatRange::axes(const onnx::Node& node, std::size_t rank) const {
  const auto dims = static_cast<std::int64_t>(rank);
  const auto range = [&](std::int64_t from) {
    std::vector<std::int64_t> list(static_cast<std::size_t>(std::max<std::int64_t>(dims - from, 0)));
    std::iota(list.begin(), list.end(), from);
    return list;
  };
  const auto counted = [&](std::int64_t axis) { return axis < 0 ? axis + dims : axis; };
  const auto& type = node.op_type();
  if (type.starts_with("Global") || type == "InstanceNormalization") return range(2);
  if (type.find("LayerNorm") != std::string::npos || type == "RMSNormalization")
    return range(counted(node.int_or("axis", -1)));
  if (type == "Softmax" || type == "LogSoftmax") return std::vector{counted(node.int_or("axis", -1))};
  if (type == "LpNormalization") return std::vector{counted(node.int_or("axis", -1))};
  if (type == "GroupNorm" || type == "SkipGroupNorm") return range(1);
  if (type == "GroupNormalization") return range(1);
  std::vector<std::int64_t> list;
  if (const auto* attribute = node.attribute("axes")) {
    list = attribute->as_ints();
  } else if (node.inputs().size() > 1 && !node.inputs()[1].empty()) {
    const int tensor = index_.initializer(node.inputs()[1]);
    if (tensor == graph::kNone) return std::nullopt;
    list = onnx::to_int64s(model_.graph.initializers[static_cast<std::size_t>(tensor)]);
  }
  if (list.empty()) return range(0);
  for (auto& axis : list) axis = counted(axis);
  return list;
}

std::optional<double> FloatRange::summands(const onnx::Node& node) const {
  if (const auto* kernel = node.attribute("kernel_shape")) {
    double count = 1;
    for (const auto size : kernel->as_ints()) count *= static_cast<double>(size);
    return count;
  }
  if (node.is("LRN")) return static_cast<double>(node.int_or("size", 1));
  const auto found = types_.find(node.inputs().at(0));
  if (found == types_.end() || !found->second.shape) return std::nullopt;
  const auto& shape = *found->second.shape;
  const auto along = axes(node, shape.size());
  if (!along) return std::nullopt;
  double count = 1;
  for (const auto axis : *along) {
    if (axis < 0 || axis >= static_cast<std::int64_t>(shape.size())) return std::nullopt;
    const auto& dim = shape[static_cast<std::size_t>(axis)];
    if (!dim.is_static()) return std::nullopt;
    count *= static_cast<double>(dim.value);
  }
  return count;
}

}  // namespace detent::quantization
