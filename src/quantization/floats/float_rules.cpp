#include "quantization/floats/float_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/traits.h"
#include "onnx/packed_numbers.h"
#include "quantization/floats/half_values.h"

namespace detent::quantization {
namespace {

constexpr double kLargestHalf = 65504;
constexpr double kSmallestNormalHalf = 1.0 / 16384;
constexpr double kWholeNumbers = 2048, kWholeNumbersBrain = 256;  // all up to here are exact
// An epsilon may be off by a tenth. A constant that multiplies has all its digits or is wrong.
// Of several numbers, the small ones may lose digits. Where all have theirs, the noise is -73 dB.
constexpr double kNoise = 3e-7;
constexpr double kEpsilonTolerance = 0.1, kTolerance = 1.0 / 1024;

float rounded(float value, FloatType type) noexcept {
  return type == FloatType::bfloat16 ? onnx::from_bfloat16(onnx::to_bfloat16(value))
                                     : onnx::from_float16(onnx::to_float16(value));
}

}  // namespace

const FloatRule* float_rule(const onnx::Node& node) noexcept {
  const auto& rule = graph::operator_of(node).floats;
  return rule.float16_from == FloatRule::kNever ? nullptr : &rule;
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

const calibration::KeyRange* FloatRange::extremes_of(const std::string& value) const {
  if (statistics_ == nullptr) return nullptr;
  const auto found = statistics_->tensors.find(value);
  return found == statistics_->tensors.end() || !found->second.has_values() ? nullptr : &found->second.extremes;
}

std::optional<double> FloatRange::largest(const std::string& value) const {
  const auto* extremes = extremes_of(value);
  if (extremes == nullptr) return std::nullopt;
  return std::max(std::abs(static_cast<double>(extremes->lowest())),
                  std::abs(static_cast<double>(extremes->highest())));
}

std::optional<bool> FloatRange::vanishes(const std::string& value) const {
  const auto* extremes = extremes_of(value);
  if (extremes == nullptr) return std::nullopt;
  const float smallest = std::max(extremes->lowest(), -extremes->highest());
  return type_ == FloatType::float16 && smallest > 0 && smallest < kSmallestNormalHalf &&
         loses(smallest, kEpsilonTolerance);
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
  if (vanishes || faint || (use.divisor && loses(m.smallest, kTolerance))) return kTooSmall;
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
  switch (graph::operator_of(node).floats.axes) {
    case graph::SumAxes::spatial: return range(2);
    case graph::SumAxes::but_batch: return range(1);
    case graph::SumAxes::from_axis: return range(counted(node.int_or("axis", -1)));
    case graph::SumAxes::one: return std::vector{counted(node.int_or("axis", -1))};
    case graph::SumAxes::listed: break;
  }
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
