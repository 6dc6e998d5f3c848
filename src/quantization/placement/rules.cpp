#include "quantization/placement/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "config/presets.h"
#include "config/targets.h"
#include "graph/operators.h"
#include "graph/traits.h"
#include "quantization/formats.h"

namespace detent::quantization {
namespace {

using graph::Trait;
using onnx::Node;

const onnx::Tensor* constant(const RuleContext& c, const std::string& value) {
  const int i = c.index.initializer(value);
  return i == graph::kNone ? nullptr : &c.model.graph.initializers[static_cast<std::size_t>(i)];
}

std::string input(const Node& node, std::size_t i) {
  return i < node.inputs().size() ? node.inputs()[i] : std::string();
}

// One scale for each channel of the node's weight, or one for the tensor where that cannot be or was not asked for.
// Integer kernels take one scale for the left operand of a matrix product.
Granularity along_channels(const RuleContext& c, const Node& node) {
  const std::string weight = input(node, graph::kWeightInput);
  const auto* tensor = constant(c, weight);
  if (!c.config.per_channel || !config::target(c.config).has_channels(node.op_type()) || tensor == nullptr ||
      c.left_operands.contains(weight))
    return Granularity::tensor();
  const auto axis = graph::channel_axis(node, tensor->dims.size());
  return axis ? Granularity::along(*axis) : Granularity::tensor();
}

// How the node adds up its weight, where that is kept from saturating. Products of 16-bit activations are computed in
// float.
std::optional<Summation> paired(const RuleContext& c, const Node& node, const Granularity& granularity) {
  const auto& config = c.config;
  const auto* tensor = constant(c, input(node, graph::kWeightInput));
  const bool symmetric = !granularity.is_tensor() || config.weight_symmetric.value_or(true);
  const bool saturates = config.weight_type == QuantType::int8 && symmetric && !is_16_bit(config.activation_type);
  if (tensor == nullptr || config.weight_range != WeightRange::pairs || !saturates) return std::nullopt;
  return summation_of(node, tensor->dims);
}

// The range that the target fixes for the node's results.
void fix_range(RuleContext& c, const Node& node) {
  for (const auto& fixed : config::target(c.config).fixed_ranges) {
    if (node.is(fixed.op_type) && c.config.activation_type == fixed.type)
      c.placement.fixed_ranges[node.outputs().front()] = {fixed.low, fixed.high};
  }
}

// Products of floats of 8 bits give wide sums: what they make becomes narrow where another product reads it.
void outputs(RuleContext& c, const Node& node) {
  if (is_float(c.config.activation_type) && graph::has_trait(node, Trait::product)) return;
  for (const auto& value : node.outputs()) c.marks.activation(value);
}

// All float inputs and outputs: Add, Mul, Concat, Sigmoid, Softmax, GlobalAveragePool and every type without a rule of
// its own.
void mark_inputs_and_outputs(RuleContext& c, std::size_t position) {
  const Node& node = c.model.graph.nodes[position];
  for (const auto& value : node.inputs()) c.marks.activation(value);
  outputs(c, node);
  const bool is_gate = config::writes_hard_sigmoids(c.config) && graph::is_on(node, graph::List::gates);
  if (is_gate || node.op_type() == "Softmax") c.placement.fixed_ranges[node.outputs().front()] = {0.0F, 1.0F};
  fix_range(c, node);
}

void bias(RuleContext& c, std::size_t position) {
  const Node& node = c.model.graph.nodes[position];
  const std::string name = input(node, 2);
  if (name.empty()) return;
  const auto* tensor = constant(c, name);
  if (config::target(c.config).keeps_bias_in_float(node.op_type())) return;
  if (is_float(c.config.weight_type)) return;                 // products are added up in floats
  const bool stays_float = config::writes_16_bits(c.config);  // which cannot hold the scale of a bias
  const float alpha = node.is("Gemm") ? node.float_or("alpha", 1) : 1,
              beta = node.is("Gemm") ? node.float_or("beta", 1) : 1;
  const char* why = nullptr;
  if (tensor == nullptr) {
    why = "it is not constant";
  } else if (tensor->type != onnx::DataType::float32) {
    why = "it is not float32";
  } else if (tensor->dims.size() != 1) {
    why = "it is not a vector";
  } else if (!(alpha > 0)) {
    why = "the alpha of its Gemm is not above 0";
  }
  if (why != nullptr && stays_float) return;
  if (why != nullptr) {
    c.placement.notes.push_back(fmt::format("{}: the bias '{}' stays in float: {}", node.label(), name, why));
    return;
  }
  if (!stays_float) c.marks.bias(name);
  c.placement.biases.push_back({position, name, node.inputs()[0], node.inputs()[1], beta, alpha, stays_float});
}

void conv(RuleContext& c, std::size_t position) {
  const Node& node = c.model.graph.nodes[position];
  const bool transposed = node.op_type() == "ConvTranspose";
  c.marks.activation(input(node, 0));
  outputs(c, node);
  auto granularity = along_channels(c, node);
  // With groups, axis 1 counts the channels of one group only, which cannot give each bias its scale.
  if (transposed && !granularity.is_tensor() && node.int_or("group", 1) > 1 && !input(node, 2).empty()) {
    granularity = Granularity::tensor();
    c.placement.notes.push_back(
        fmt::format("{}: the weight has a single scale: the node is grouped and has a bias", node.label()));
  }
  c.marks.weight(input(node, 1), granularity, paired(c, node, granularity));
  bias(c, position);
}

void gemm(RuleContext& c, std::size_t position) {
  const Node& node = c.model.graph.nodes[position];
  c.marks.activation(input(node, 0));
  outputs(c, node);
  const auto granularity = along_channels(c, node);
  c.marks.weight(input(node, 1), granularity, paired(c, node, granularity));
  bias(c, position);
}

void mat_mul(RuleContext& c, std::size_t position) {
  const Node& node = c.model.graph.nodes[position];
  for (std::size_t i = 0; i < node.inputs().size(); ++i) {
    const std::string& value = node.inputs()[i];
    if (constant(c, value) == nullptr) {
      c.marks.activation(value);
    } else if (i == graph::kWeightInput) {
      const auto granularity = along_channels(c, node);
      c.marks.weight(value, granularity, paired(c, node, granularity));
    } else {
      c.marks.weight(value, Granularity::tensor());
    }
  }
  outputs(c, node);
}

// Scale and bias of InstanceNormalization, LayerNormalization and BatchNormalization.
void normalization(RuleContext& c, std::size_t position) {
  const Node& node = c.model.graph.nodes[position];
  c.marks.activation(input(node, 0));
  if (constant(c, input(node, 1)) != nullptr) {
    c.marks.weight(input(node, 1), along_channels(c, node));
  } else {
    c.marks.activation(input(node, 1));
  }
  bias(c, position);
  outputs(c, node);
}

// Data movement: the first output holds values of the first input, so they share a scale.
void movement(RuleContext& c, std::size_t position) {
  const Node& node = c.model.graph.nodes[position];
  if (c.model.opset() < graph::traits_of(node).opset_of_8_bits) return;
  if (c.marks.contains(input(node, 0))) c.marks.shared(node.outputs().front(), input(node, 0));
}

void gather(RuleContext& c, std::size_t position) {
  const Node& node = c.model.graph.nodes[position];
  if (constant(c, input(node, 0)) != nullptr) c.marks.activation(input(node, 0));
  movement(c, position);
}

void split(RuleContext& c, std::size_t position) {
  const Node& node = c.model.graph.nodes[position];
  if (!c.marks.contains(input(node, 0))) c.marks.activation(input(node, 0));
  for (const auto& value : node.outputs()) c.marks.shared(value, input(node, 0));
}

void where(RuleContext& c, std::size_t position) {
  const Node& node = c.model.graph.nodes[position];
  if (c.marks.contains(input(node, 1)) && c.marks.contains(input(node, 2))) outputs(c, node);
}

// Padding with values of the input, or with 0, which every range includes, keeps the input's scale.
bool pads_within_range(const RuleContext& c, const Node& node) {
  const auto* mode = node.attribute("mode");
  if (mode != nullptr && mode->as_string() != "constant") return true;
  if (c.model.opset() < 11) return node.float_or("value", 0) == 0;
  const std::string value = input(node, 2);
  if (value.empty()) return true;
  const auto* tensor = constant(c, value);
  return tensor != nullptr && tensor->type == onnx::DataType::float32 && tensor->count() == 1 &&
         onnx::to_doubles(*tensor)[0] == 0;
}

void pad(RuleContext& c, std::size_t position) {
  const Node& node = c.model.graph.nodes[position];
  for (const auto& value : node.inputs()) c.marks.activation(value);
  if (pads_within_range(c, node)) {
    c.marks.shared(node.outputs().front(), input(node, 0));
  } else {
    outputs(c, node);
  }
}

// The bounds of Relu or Clip; false when they are not constant.
bool bounds(const RuleContext& c, const Node& node, FusedActivation& fused) {
  fused.high = std::numeric_limits<float>::infinity();
  if (node.op_type() == "Relu") return true;
  fused.low = -fused.high;
  if (c.model.opset() < 11) {
    fused.low = node.float_or("min", fused.low);
    fused.high = node.float_or("max", fused.high);
    return true;
  }
  float* const sides[] = {&fused.low, &fused.high};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string name = input(node, i + 1);
    if (name.empty()) continue;
    const auto* tensor = constant(c, name);
    if (tensor == nullptr || tensor->type != onnx::DataType::float32 || tensor->count() != 1) return false;
    *sides[i] = static_cast<float>(onnx::to_doubles(*tensor)[0]);
  }
  return true;
}

// What the target says of the maker's results holds for those, not for what an activation makes of them.
bool has_own_results(const RuleContext& c, const Node& maker) {
  const auto& target = config::target(c.config);
  const auto& fixed = target.fixed_ranges;
  return target.aligns(maker.op_type()) || std::any_of(fixed.begin(), fixed.end(), [&](const auto& range) {
           return maker.is(range.op_type) && c.config.activation_type == range.type;
         });
}

// Where float is no way out, it needs integers of its own behind what does not run it along.
bool fuses_into_maker(const RuleContext& c, const Node& maker, const FusedActivation& fused) {
  const auto& target = config::target(c.config);
  if (has_own_results(c, maker)) return false;
  return !target.all_operators || fused.removable || graph::is_product(maker) ||
         target.runs_activation_along(maker.op_type());
}

void clipping(RuleContext& c, std::size_t position) {
  const Node& node = c.model.graph.nodes[position];
  const std::string& in = node.inputs().front();
  const std::string& out = node.outputs().front();
  if (!c.marks.contains(in)) return;
  const bool only_reader =
      c.index.consumers(in).size() == 1 && !c.index.is_output(in) && c.index.producer(in) != graph::kNone;
  if (only_reader) {
    FusedActivation fused{position, in, out, 0, 0, false};
    // A body that reads the value reads it in float, where no integers cut it.
    fused.removable = bounds(c, node, fused) && !c.config.activation_symmetric && !c.index.is_captured(out);
    const auto& maker = c.model.graph.nodes[static_cast<std::size_t>(c.index.producer(in))];
    if (fuses_into_maker(c, maker, fused)) {
      c.marks.erase(in);
      c.placement.fused.push_back(std::move(fused));
    }
  }
  c.marks.activation(out);
}

// It reads and makes floats.
void leave_in_float(RuleContext&, std::size_t) {}

using Rule = void (*)(RuleContext&, std::size_t);

// The rules of single types; all others follow from their traits.
const std::unordered_map<std::string_view, Rule>& rules_by_type() {
  static const std::unordered_map<std::string_view, Rule> kRules{
      {"Gemm", gemm},   {"MatMul", mat_mul}, {"Gather", gather}, {"GatherElements", gather},
      {"Split", split}, {"Where", where},    {"Pad", pad},
  };
  return kRules;
}

Rule rule_of(const RuleContext& c, const Node& node) {
  const auto& traits = graph::traits_of(node);
  if (is_float_kernel(node)) return leave_in_float;
  const auto found = rules_by_type().find(traits.type);
  if (found != rules_by_type().end()) return found->second;
  if (traits.is(Trait::convolution)) return conv;
  if (traits.is(Trait::normalization)) return normalization;
  if (traits.is(Trait::clips)) return clipping;
  if (config::target(c.config).has_own_scale(node.op_type())) return mark_inputs_and_outputs;
  const bool all_operators = config::target(c.config).all_operators;
  if (traits.is(Trait::shares_scale) || (all_operators && traits.is(Trait::rearranges))) return movement;
  return mark_inputs_and_outputs;
}

// Integer kernels of pools know no dilations.
bool is_dilated(const Node& node) {
  const auto* dilations = node.attribute("dilations");
  if (dilations == nullptr) return false;
  const auto steps = dilations->as_ints();
  return std::any_of(steps.begin(), steps.end(), [](auto step) { return step != 1; });
}

// Cubic interpolation leaves the range of its values.
bool is_cubic(const Node& node) {
  const auto* mode = node.attribute("mode");
  return mode != nullptr && mode->as_string() == "cubic";
}

}  // namespace

bool is_float_kernel(const Node& node) {
  return (node.is("AveragePool") && is_dilated(node)) || (node.is("Resize") && is_cubic(node));
}

std::unordered_set<std::string> left_operands(const onnx::Model& model) {
  std::unordered_set<std::string> values;
  for (const auto& node : model.graph.nodes) {
    if (graph::is_matrix_product(node)) values.insert(input(node, 0));
  }
  return values;
}

void apply_rule(RuleContext& context, std::size_t position) {
  rule_of(context, context.model.graph.nodes[position])(context, position);
}

}  // namespace detent::quantization
