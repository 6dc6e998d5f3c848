#include "checking/reference.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/operators.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "onnx/write.h"

namespace detent::checking {

// Private to checking/: a graph under construction whose float values are also there in float64.

/// A DequantizeLinear whose integers can be read by themselves.
struct Integers {
  const onnx::Node* node = nullptr;
  std::vector<double> scales;
  std::vector<std::int64_t> zeros;
  onnx::DataType type = onnx::DataType::undefined;
  std::int64_t axis = 0;  // of several scales
  std::size_t rank = 0;   // of the value; 0: not known
  double magnitude = 0;   // at most, of the integers without zero point
  bool is_one_scale() const noexcept { return scales.size() == 1; }
};

class ReferenceGraph {
 public:
  ReferenceGraph(const onnx::Model& model, const graph::ValueTypes& types);

  const graph::Index& index() const noexcept { return index_; }
  const onnx::Tensor* constant(const std::string& value) const;
  bool is_float(const std::string& value) const;
  std::optional<std::size_t> rank_of(const std::string& value) const;

  /// Adds a node with one output of a fresh name, which it returns.
  std::string add(const std::string& op_type, std::vector<std::string> inputs, const std::string& wanted,
                  std::vector<onnx::Attribute> attributes = {});
  void add(onnx::Node node) { nodes_.push_back(std::move(node)); }
  std::string constant_doubles(const std::string& wanted, std::vector<std::int64_t> dims,
                               const std::vector<double>& values);
  std::string constant_ints(const std::string& wanted, const std::vector<std::int64_t>& values);
  std::string cast(const std::string& value, onnx::DataType to, const std::string& wanted);

  /// Found later under this name in float64, float32, or as integers.
  void define_double(const std::string& value, const std::string& as) { doubles_[value] = as; }
  void define_float(const std::string& value) { floats_.insert(value); }
  void define_integers(const std::string& value, Integers integers) { integers_[value] = std::move(integers); }
  const Integers* integers(const std::string& value) const;

  /// The value in float64; scaled, where it is integers.
  std::string dequantized(const std::string& value);
  /// Adds what makes the value in float32, under its own name.
  void need_float(const std::string& value);
  /// The integers less their zero points in float32, exactly; of int32, in float64.
  std::string without_zero_point(const std::string& value);
  std::string double_without_zero_point(const std::string& value);
  /// The product of a value in float64 and numbers along an axis (or one number).
  std::string scaled(const std::string& value, const std::vector<double>& scales, std::size_t axis, std::size_t rank,
                     const std::string& wanted);

  onnx::Model finish();

 private:
  onnx::Model model_;
  const graph::ValueTypes& types_;
  graph::Index index_;
  std::vector<onnx::Node> nodes_;
  std::unordered_map<std::string, std::string> doubles_, centred_;
  std::unordered_map<std::string, Integers> integers_;
  std::set<std::string> floats_;
};

// Private to checking/: operators that the runtime has no float64 kernels for, as others that it has.

/// Adds a Conv, ConvTranspose, MatMul or Gemm of dequantized operands, summed up as integers; false: it is none.
bool add_product(ReferenceGraph& g, const onnx::Node& node);

/// Adds an average pool of a dequantized value, summed up as integers; false: it is none.
bool add_pool(ReferenceGraph& g, const onnx::Node& node);

/// Adds a HardSigmoid, HardSwish or LeakyRelu in float64; false: it is none.
bool add_piecewise(ReferenceGraph& g, const onnx::Node& node);

namespace {

using onnx::DataType;
using onnx::Node;

struct Limits {
  double low = 0, high = 0;
};

Limits limits_of(DataType type) {
  switch (type) {
    case DataType::uint8: return {0, 255};
    case DataType::int8: return {-128, 127};
    case DataType::uint16: return {0, 65535};
    case DataType::int16: return {-32768, 32767};
    case DataType::uint4: return {0, 15};
    case DataType::int4: return {-8, 7};
    case DataType::int32: return {-2147483648.0, 2147483647.0};
    default: return {};
  }
}

class Rewrite {
 public:
  Rewrite(const onnx::Model& model, const graph::ValueTypes& types) : model_(model), types_(types), g_(model, types) {}

  Reference run() {
    for (const auto& node : model_.graph.nodes) {
      if (is_pair(node, "DequantizeLinear") && read_integers(node)) continue;
      if (is_pair(node, "QuantizeLinear") && add_quantize_linear(node)) continue;
      if (add_product(g_, node) || add_pool(g_, node) || add_piecewise(g_, node)) continue;
      if (graph::is_on(node, graph::List::in_double) && in_double(node)) continue;
      copy_in_float32(node);
    }
    return {g_.finish(), inexact_.empty(), inexact_};
  }

 private:
  static bool is_pair(const Node& node, std::string_view op_type) {
    return node.op_type() == op_type && (node.domain().empty() || node.domain() == "com.microsoft") &&
           node.int_or("block_size", 0) == 0;
  }

  // Scales and zero points of a pair; nothing where they are not constant float32 numbers, one or along an axis.
  bool read_pair(const Node& node, DataType type, Integers& to) const {
    const auto& inputs = node.inputs();
    const auto* scale = g_.constant(inputs[1]);
    const auto* zero = inputs.size() > 2 && !inputs[2].empty() ? g_.constant(inputs[2]) : nullptr;
    const bool has_zero = inputs.size() > 2 && !inputs[2].empty();
    if (scale == nullptr || scale->type != DataType::float32 || scale->dims.size() > 1 || (has_zero && zero == nullptr))
      return false;
    to.node = &node;
    to.type = zero != nullptr ? zero->type : type;
    if (limits_of(to.type).high == 0) return false;
    to.scales = onnx::to_doubles(*scale);
    to.zeros = zero != nullptr ? onnx::to_int64s(*zero) : std::vector<std::int64_t>{0};
    if (to.scales.empty()) return false;
    const auto rank = g_.rank_of(inputs[0]);
    to.rank = rank.value_or(0);
    to.axis = node.int_or("axis", 1);
    if (to.axis < 0) to.axis += static_cast<std::int64_t>(to.rank);
    const bool fits = rank && to.axis >= 0 && to.axis < static_cast<std::int64_t>(to.rank);
    return to.is_one_scale() || fits;
  }

  bool read_integers(const Node& node) {
    Integers integers;
    if (!read_pair(node, graph::type_of(model_, types_, node.inputs()[0]), integers)) return false;
    const bool is_centred = std::all_of(integers.zeros.begin(), integers.zeros.end(), [](auto z) { return z == 0; });
    if (integers.type == DataType::int32 && !is_centred) return false;
    const auto [low, high] = limits_of(integers.type);
    for (const auto zero : integers.zeros) {
      const auto z = static_cast<double>(zero);
      integers.magnitude = std::max({integers.magnitude, high - z, z - low});
    }
    g_.define_integers(node.outputs()[0], std::move(integers));
    return true;
  }

  bool add_quantize_linear(const Node& node) {
    Integers to;
    const auto& out = node.outputs()[0];
    const auto given = node.int_or("output_dtype", static_cast<std::int64_t>(DataType::uint8));
    if (!g_.is_float(node.inputs()[0]) || !read_pair(node, static_cast<DataType>(given), to)) return false;
    if (to.type == DataType::int4 || to.type == DataType::uint4 || to.type == DataType::int32) return false;
    std::vector<std::int64_t> dims;
    if (!to.is_one_scale()) {
      dims.assign(to.rank - static_cast<std::size_t>(to.axis), 1);
      dims.front() = static_cast<std::int64_t>(to.scales.size());
    }
    const std::vector<double> zeros(to.zeros.begin(), to.zeros.end());
    const auto [low, high] = limits_of(to.type);
    auto y =
        g_.add("Div", {g_.dequantized(node.inputs()[0]), g_.constant_doubles(out + "@scale", dims, to.scales)}, out);
    y = g_.add("Round", {y}, out + "@round");
    const auto zero_dims = zeros.size() > 1 ? dims : std::vector<std::int64_t>{};
    y = g_.add("Add", {y, g_.constant_doubles(out + "@zero", zero_dims, zeros)}, out + "@shift");
    y = g_.add("Max", {y, g_.constant_doubles(out + "@low", {}, {low})}, out + "@max");
    y = g_.add("Min", {y, g_.constant_doubles(out + "@high", {}, {high})}, out + "@min");
    g_.add(Node("Cast", "", {y}, {out}, {onnx::Attribute::of_int("to", static_cast<std::int64_t>(to.type))}));
    g_.define_float(out);
    return true;
  }

  bool knows_types(const Node& node) const {
    const auto is_known = [&](const auto& name) {
      return name.empty() || graph::type_of(model_, types_, name) != DataType::undefined;
    };
    return std::all_of(node.inputs().begin(), node.inputs().end(), is_known) &&
           std::all_of(node.outputs().begin(), node.outputs().end(), is_known);
  }

  bool in_double(const Node& node) {
    const auto is_float = [&](const auto& name) { return !name.empty() && g_.is_float(name); };
    if (!knows_types(node) || std::none_of(node.inputs().begin(), node.inputs().end(), is_float)) return false;
    Node copy = node;
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (is_float(node.inputs()[i])) copy.set_input(i, g_.dequantized(node.inputs()[i]));
    }
    for (std::size_t i = 0; i < node.outputs().size(); ++i) {
      const auto& name = node.outputs()[i];
      if (!is_float(name)) {
        g_.define_float(name);
        continue;
      }
      copy.set_output(i, name + "@double");
      g_.define_double(name, name + "@double");
    }
    g_.add(std::move(copy));
    return true;
  }

  void copy_in_float32(const Node& node) {
    for (const auto& name : node.inputs()) g_.need_float(name);
    for (const auto& name : graph::captured_names(model_, node)) g_.need_float(name);
    const bool computes = node.op_type() != "Cast" && !graph::is_dequantize_linear(node) &&
                          std::any_of(node.outputs().begin(), node.outputs().end(),
                                      [&](const auto& name) { return !name.empty() && g_.is_float(name); });
    const bool is_integer_op = node.op_type().starts_with("QLinear");
    if ((computes || is_integer_op) && inexact_.empty()) inexact_ = node.op_type();
    for (const auto& name : node.outputs()) g_.define_float(name);
    g_.add(node);
  }

  const onnx::Model& model_;
  const graph::ValueTypes& types_;
  ReferenceGraph g_;
  std::string inexact_;
};

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

Reference reference_of(const onnx::Model& model, const graph::ValueTypes& types) {
  // From here on ONNX Runtime has the kernels of float64, of which PRelu's is the last.
  constexpr std::int64_t kOpset = 17;
  if (model.opset() >= kOpset) return Rewrite(model, types).run();
  onnx::Model raised = model;
  graph::upgrade_opset(raised, types, kOpset);
  return Rewrite(raised, types).run();
}

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
  if (!graph::is_on(node, graph::List::averages)) return false;
  const auto &x = node.inputs()[0], &out = node.outputs()[0];
  const auto* of_x = g.integers(x);
  if (of_x == nullptr || !of_x->is_one_scale() || of_x->type == DataType::int32) return false;
  auto mean = g.add(node.op_type(), {g.without_zero_point(x)}, out + "@mean", node.attributes());
  mean = g.cast(mean, DataType::float64, out + "@mean");
  g.define_double(out, g.scaled(mean, of_x->scales, 0, 0, out + "@scaled"));
  return true;
}

ReferenceGraph::ReferenceGraph(const onnx::Model& model, const graph::ValueTypes& types)
    : model_(model), types_(types), index_(model) {
  for (const auto& input : model.graph.inputs) floats_.insert(input.name);
  for (const auto& tensor : model.graph.initializers) floats_.insert(tensor.name);
}

const onnx::Tensor* ReferenceGraph::constant(const std::string& value) const {
  const int i = index_.initializer(value);
  return i == graph::kNone ? nullptr : &model_.graph.initializers[static_cast<std::size_t>(i)];
}

bool ReferenceGraph::is_float(const std::string& value) const {
  return graph::type_of(model_, types_, value) == DataType::float32;
}

std::optional<std::size_t> ReferenceGraph::rank_of(const std::string& value) const {
  if (const auto* tensor = constant(value)) return tensor->dims.size();
  return graph::rank_of(types_, value);
}

std::string ReferenceGraph::add(const std::string& op_type, std::vector<std::string> inputs, const std::string& wanted,
                                std::vector<onnx::Attribute> attributes) {
  auto name = index_.fresh_name(wanted);
  nodes_.emplace_back(op_type, name, std::move(inputs), std::vector{name}, std::move(attributes));
  return name;
}

std::string ReferenceGraph::constant_doubles(const std::string& wanted, std::vector<std::int64_t> dims,
                                             const std::vector<double>& values) {
  auto name = index_.fresh_name(wanted);
  model_.graph.initializers.push_back(
      onnx::make_tensor<double>(name, DataType::float64, std::move(dims), std::span<const double>(values)));
  return name;
}

std::string ReferenceGraph::constant_ints(const std::string& wanted, const std::vector<std::int64_t>& values) {
  auto name = index_.fresh_name(wanted);
  model_.graph.initializers.push_back(onnx::make_tensor<std::int64_t>(
      name, DataType::int64, {static_cast<std::int64_t>(values.size())}, std::span<const std::int64_t>(values)));
  return name;
}

std::string ReferenceGraph::cast(const std::string& value, DataType to, const std::string& wanted) {
  return add("Cast", {value}, wanted, {onnx::Attribute::of_int("to", static_cast<std::int64_t>(to))});
}

const Integers* ReferenceGraph::integers(const std::string& value) const {
  const auto found = integers_.find(value);
  return found == integers_.end() ? nullptr : &found->second;
}

std::string ReferenceGraph::dequantized(const std::string& value) {
  if (const auto found = doubles_.find(value); found != doubles_.end()) return found->second;
  std::string made;
  if (const auto* of = integers(value)) {
    made = scaled(double_without_zero_point(value), of->scales, static_cast<std::size_t>(of->axis), of->rank,
                  value + "@double");
  } else {
    made = cast(value, DataType::float64, value + "@double");
  }
  doubles_[value] = made;
  return made;
}

void ReferenceGraph::need_float(const std::string& value) {
  if (value.empty() || !floats_.insert(value).second) return;
  if (const auto* of = integers(value)) {
    nodes_.push_back(*of->node);
  } else if (const auto found = doubles_.find(value); found != doubles_.end()) {
    nodes_.emplace_back("Cast", "", std::vector{found->second}, std::vector{value},
                        std::vector{onnx::Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32))});
  }
}

std::string ReferenceGraph::without_zero_point(const std::string& value) {
  if (const auto found = centred_.find(value); found != centred_.end()) return found->second;
  const Integers& of = integers_.at(value);
  const auto& inputs = of.node->inputs();
  std::string made;
  if (of.type == DataType::int32) {
    made = cast(inputs[0], DataType::float64, value + "@centred");
  } else {
    // Steps of one: the runtime's own operator subtracts the zero points, for all types and axes.
    const std::vector<float> ones(of.scales.size(), 1.0F);
    const auto scale = index_.fresh_name(value + "@ones");
    const auto* given = constant(inputs[1]);
    model_.graph.initializers.push_back(
        onnx::make_tensor<float>(scale, DataType::float32, given->dims, std::span<const float>(ones)));
    onnx::Node node = *of.node;
    made = index_.fresh_name(value + "@centred");
    node.set_input(1, scale);
    node.set_output(0, made);
    node.set_name(made);
    nodes_.push_back(std::move(node));
  }
  centred_[value] = made;
  return made;
}

std::string ReferenceGraph::double_without_zero_point(const std::string& value) {
  const auto made = without_zero_point(value);
  return integers_.at(value).type == DataType::int32 ? made : dequantized(made);
}

std::string ReferenceGraph::scaled(const std::string& value, const std::vector<double>& scales, std::size_t axis,
                                   std::size_t rank, const std::string& wanted) {
  std::vector<std::int64_t> dims;
  if (scales.size() > 1) {
    dims.assign(rank - axis, 1);
    dims.front() = static_cast<std::int64_t>(scales.size());
  }
  return add("Mul", {value, constant_doubles(wanted + "@scale", std::move(dims), scales)}, wanted);
}

onnx::Model ReferenceGraph::finish() {
  for (const auto& output : model_.graph.outputs) need_float(output.name);
  model_.graph.nodes = std::move(nodes_);
  model_.graph.value_infos.clear();
  return std::move(model_);
}

}  // namespace detent::checking
