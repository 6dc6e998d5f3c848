#include "checking/reference_products.h"
#include "graph/traits.h"

#include <cmath>
#include <utility>

namespace detent::checking {
namespace {

using onnx::DataType;
using onnx::Node;

constexpr double kExactInFloat = 1 << 24;

// An operand as a sum of `count` parts, which are integers times powers of `base`.
struct Parts {
  int count = 1;
  double base = 1;
  double magnitude = 0;  // of each part, at most

  static Parts of(double magnitude, int count) {
    if (count == 1) return {1, 1, magnitude};
    const double bits = std::ceil((std::log2(magnitude) + 1) / count);
    const double base = std::exp2(bits);
    return {count, base, std::max(base / 2, std::floor(magnitude / std::pow(base, count - 1)) + 1)};
  }
};

// Integers in float32, cut into parts: the nearest multiples of the powers, the largest power first.
std::vector<std::pair<std::string, double>> split_into_parts(ReferenceGraph& g, std::string value, const Parts& parts) {
  std::vector<std::pair<std::string, double>> all;
  for (int i = parts.count - 1; i > 0; --i) {
    const double power = std::pow(parts.base, i);
    const auto factor = g.cast(g.constant_doubles(value + "@power", {}, {power}), DataType::float32, value + "@power");
    const auto high = g.add("Round", {g.add("Div", {value, factor}, value + "@part")}, value + "@high");
    value = g.add("Sub", {value, g.add("Mul", {high, factor}, value + "@back")}, value + "@low");
    all.emplace_back(high, power);
  }
  all.emplace_back(value, 1.0);
  return all;
}

// A convolution of integers, in float64; empty: its sums are too long.
std::string convolved(ReferenceGraph& g, const Node& node, double terms) {
  const auto &x = node.inputs()[0], &w = node.inputs()[1];
  const double of_x = g.integers(x)->magnitude, of_w = g.integers(w)->magnitude;
  Parts xs = Parts::of(of_x, 1), ws = Parts::of(of_w, 1);
  while (terms * xs.magnitude * ws.magnitude > kExactInFloat) {
    if (xs.count + ws.count > 12) return {};
    if (xs.magnitude > 2 * ws.magnitude) {
      xs = Parts::of(of_x, xs.count + 1);
    } else {
      ws = Parts::of(of_w, ws.count + 1);
    }
  }
  const auto& out = node.outputs()[0];
  const auto x_parts = split_into_parts(g, g.without_zero_point(x), xs),
             w_parts = split_into_parts(g, g.without_zero_point(w), ws);
  std::string sum;
  for (const auto& [x_part, x_power] : x_parts) {
    for (const auto& [w_part, w_power] : w_parts) {
      auto part = g.add(node.op_type(), {x_part, w_part}, out + "@part", node.attributes());
      part = g.cast(part, DataType::float64, out + "@part");
      if (x_power * w_power != 1) part = g.scaled(part, {x_power * w_power}, 0, 0, out + "@part");
      sum = sum.empty() ? part : g.add("Add", {sum, part}, out + "@sum");
    }
  }
  return sum;
}

// The axis of the results along which the scales of the weight go; -1: there is one scale. nullopt: another axis.
std::optional<std::int64_t> axis_of_results(const Node& node, const Integers& w, std::size_t rank) {
  if (w.is_one_scale()) return -1;
  if (node.op_type() == "Conv" && w.axis == 0) return 1;
  if (node.op_type() == "ConvTranspose" && w.axis == 1 && node.int_or("group", 1) == 1) return 1;
  if (node.op_type() == "Gemm" && w.axis == (node.int_or("transB", 0) != 0 ? 0 : 1)) return 1;
  if (node.op_type() == "MatMul" && rank > 0 && w.axis + 1 == static_cast<std::int64_t>(w.rank) && w.rank > 1)
    return static_cast<std::int64_t>(rank) - 1;
  return std::nullopt;
}

// What is summed up for each result.
double terms_of(const Node& node, const std::vector<std::int64_t>& weight) {
  double terms = 1;
  for (std::size_t i = 0; i < weight.size(); ++i) {
    const bool is_output = node.op_type() == "Conv" ? i == 0 : i == 1;
    if (!is_output) terms *= static_cast<double>(weight[i]);
  }
  return terms;
}

// The bias in the form in which it is added to the results.
std::string shaped(ReferenceGraph& g, const Node& node, const std::string& bias, std::size_t rank) {
  if (node.op_type() == "Gemm") return bias;
  std::vector<std::int64_t> shape(rank - 1, 1);
  shape.front() = -1;
  const auto& out = node.outputs()[0];
  return g.add("Reshape", {bias, g.constant_ints(out + "@shape", shape)}, out + "@bias");
}

// Whether the bias counts in steps of the sums, so that integer kernels add it to them.
bool is_in_steps(const Integers& bias, const std::vector<double>& scales) {
  if (bias.type != DataType::int32 || bias.scales.size() != scales.size()) return false;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (static_cast<float>(bias.scales[i]) != static_cast<float>(scales[i])) return false;
  }
  return true;
}

// Sums of integers become results: the bias is added before the scales are applied, or after.
std::string finished(ReferenceGraph& g, const Node& node, std::string sum, const std::vector<double>& scales,
                     std::size_t axis, std::size_t rank) {
  const auto& out = node.outputs()[0];
  const bool has_bias = node.inputs().size() > 2 && !node.inputs()[2].empty();
  const bool is_gemm = node.op_type() == "Gemm";
  const double alpha = is_gemm ? static_cast<double>(node.float_or("alpha", 1)) : 1;
  const double beta = is_gemm ? static_cast<double>(node.float_or("beta", 1)) : 1;
  const auto* of_bias = has_bias ? g.integers(node.inputs()[2]) : nullptr;
  const bool first = of_bias != nullptr && alpha == 1 && beta == 1 && is_in_steps(*of_bias, scales);
  if (first) {
    const auto bias = shaped(g, node, g.double_without_zero_point(node.inputs()[2]), rank);
    sum = g.add("Add", {sum, bias}, out + "@biased");
  }
  auto with_alpha = scales;
  for (double& scale : with_alpha) scale *= alpha;
  sum = g.scaled(sum, with_alpha, axis, rank, out + "@scaled");
  if (!has_bias || first) return sum;
  auto bias = shaped(g, node, g.dequantized(node.inputs()[2]), rank);
  if (beta != 1) bias = g.scaled(bias, {beta}, 0, 0, out + "@bias");
  return g.add("Add", {sum, bias}, out + "@biased");
}

}  // namespace

bool add_product(ReferenceGraph& g, const Node& node) {
  const bool is_convolution = graph::is_convolution(node);
  if (!is_convolution && !graph::is_matrix_product(node)) return false;
  const auto &x = node.inputs()[0], &w = node.inputs()[1], &out = node.outputs()[0];
  const auto *of_x = g.integers(x), *of_w = g.integers(w);
  if (of_x == nullptr || of_w == nullptr || !of_x->is_one_scale()) return false;
  if (of_x->type == DataType::int32 || of_w->type == DataType::int32) return false;
  const auto rank = is_convolution ? g.rank_of(w) : node.is("Gemm") ? 2 : g.rank_of(out);
  const auto axis = axis_of_results(node, *of_w, rank.value_or(0));
  if (!axis || (is_convolution && !rank)) return false;
  std::vector<double> scales;
  for (const double s : of_w->scales) scales.push_back(s * of_x->scales.front());
  std::string sum;
  if (is_convolution) {
    const auto* weight = g.constant(of_w->node->inputs()[0]);
    if (weight == nullptr) return false;
    sum = convolved(g, node, terms_of(node, weight->dims));
    if (sum.empty()) return false;
  } else {
    std::vector<onnx::Attribute> attributes;
    for (const auto* name : {"transA", "transB"}) {
      if (const auto* attribute = node.attribute(name)) attributes.push_back(*attribute);
    }
    sum = g.add(node.op_type(), {g.double_without_zero_point(x), g.double_without_zero_point(w)}, out + "@sum",
                std::move(attributes));
  }
  const auto at = *axis < 0 ? 0 : static_cast<std::size_t>(*axis);
  g.define_double(out, finished(g, node, std::move(sum), scales, at, rank.value_or(0)));
  return true;
}

bool add_piecewise(ReferenceGraph& g, const Node& node) {
  const bool is_gate = node.is("HardSigmoid") || node.is("HardSwish");
  if ((!is_gate && !node.is("LeakyRelu")) || !g.is_float(node.inputs()[0])) return false;
  const auto& out = node.outputs()[0];
  const auto x = g.dequantized(node.inputs()[0]);
  const auto number = [&](double value) { return g.constant_doubles(out + "@number", {}, {value}); };
  if (!is_gate) {
    const auto below = g.add("Min", {x, number(0)}, out + "@below");
    const auto slope = static_cast<double>(node.float_or("alpha", 0.01F));
    g.define_double(out,
                    g.add("Add", {g.add("Relu", {x}, out + "@above"), g.scaled(below, {slope}, 0, 0, out + "@slope")},
                          out + "@double"));
    return true;
  }
  const bool swish = node.is("HardSwish");
  const double alpha = swish ? 1.0 / 6 : static_cast<double>(node.float_or("alpha", 0.2F));
  const double beta = swish ? 0.5 : static_cast<double>(node.float_or("beta", 0.5F));
  auto gate = g.add("Add", {g.scaled(x, {alpha}, 0, 0, out + "@slope"), number(beta)}, out + "@line");
  gate = g.add("Min", {g.add("Relu", {gate}, out + "@above"), number(1)}, out + "@gate");
  g.define_double(out, swish ? g.add("Mul", {x, gate}, out + "@double") : gate);
  return true;
}

bool add_pool(ReferenceGraph& g, const Node& node) {
  if (!node.is("AveragePool") && !node.is("GlobalAveragePool")) return false;
  const auto &x = node.inputs()[0], &out = node.outputs()[0];
  const auto* of_x = g.integers(x);
  if (of_x == nullptr || !of_x->is_one_scale() || of_x->type == DataType::int32) return false;
  auto mean = g.add(node.op_type(), {g.without_zero_point(x)}, out + "@mean", node.attributes());
  mean = g.cast(mean, DataType::float64, out + "@mean");
  g.define_double(out, g.scaled(mean, of_x->scales, 0, 0, out + "@scaled"));
  return true;
}

}  // namespace detent::checking
