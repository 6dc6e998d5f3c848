#include "quantization/floats/float_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "graph/bodies.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/index_arithmetic.h"
#include "graph/traits.h"
#include "onnx/bodies.h"
#include "quantization/floats/float_casts.h"
#include "quantization/floats/float_range.h"
#include "quantization/floats/float_rules.h"

namespace detent::quantization {
namespace {

using onnx::DataType;
using onnx::Node;

constexpr std::size_t kLabels = 3;  // that a note lists

// Nodes that read more constants than this are not moved to float32 for the sake of fewer casts.
constexpr std::uint64_t kLightBytes = std::uint64_t{64} << 10;

bool in_mask(std::uint16_t mask, std::size_t position) { return position < 16 && (mask >> position & 1U) != 0; }

class Placer {
 public:
  Placer(const onnx::Model& model, const graph::ValueTypes& types, const FloatFacts& facts)
      : model_(model),
        types_(types),
        facts_(facts),
        index_(model),
        range_(model, index_, types, facts.type, facts.statistics) {}

  FloatPlacement run() {
    const std::size_t count = model_.graph.nodes.size();
    reasons_.resize(count);
    placement_.low.assign(count, false);
    for (std::size_t n = 0; n < count; ++n) {
      if (!has_floats(n)) continue;
      reasons_[n] = reason(n);
      placement_.low[n] = reasons_[n].empty();
    }
    keep_index_arithmetic();
    for (const auto n : merge_islands(model_, types_, index_, facts_.keep_io_types, light(), placement_.low))
      reasons_[n] = "they lie between nodes that do, and casts are saved";
    // ONNX Runtime makes one operator of a LayerNormalization in parts, also where it ends in float32; and takes it
    // with inputs of bfloat16 then for invalid.
    if (facts_.keep_io_types && facts_.type != FloatType::bfloat16) keep_ends();
    take_notes();
    return std::move(placement_);
  }

 private:
  bool is_float(const std::string& value) const {
    return !value.empty() && graph::type_of(model_, types_, value) == DataType::float32;
  }

  bool is_integer(const std::string& value) const {
    static constexpr DataType kSmall[] = {DataType::boolean, DataType::float16, DataType::bfloat16, DataType::float32,
                                          DataType::float64, DataType::int8,    DataType::uint8};
    const auto type = graph::type_of(model_, types_, value);
    return std::find(std::begin(kSmall), std::end(kSmall), type) == std::end(kSmall);
  }

  bool has_floats(std::size_t n) const {
    const auto& node = model_.graph.nodes[n];
    if (node.op_type() == onnx::kBodyInputs) return false;  // what it makes is as the node that holds the body reads it
    const auto any = [&](const auto& names) {
      return std::any_of(names.begin(), names.end(), [&](const auto& name) { return is_float(name); });
    };
    return any(node.inputs()) || any(node.outputs()) || graph::has_body(node);
  }

  // Empty: the node may be in 16 bits.
  std::string reason(std::size_t n) const {
    const auto& node = model_.graph.nodes[n];
    if (graph::has_body(node)) return "their bodies do";
    if (!node.bodies().empty()) return "values pass into and out of their bodies so";
    const auto* rule = float_rule(node);
    if (rule == nullptr) return fmt::format("detent knows no {} kernels of their operators", name());
    if (!node.domain().empty() && is_function(node)) return "they are model-local functions";
    if (has_unknown_types(node)) return "not all types of what they read and make are known";
    const auto from = facts_.type == FloatType::float16 ? rule->float16_from : rule->bfloat16_from;
    if (from == FloatRule::kNever) return fmt::format("{} has no {} form", node.op_type(), name());
    if (from > model_.opset(node.domain()) && node.domain().empty())
      return fmt::format("{} has a {} form from opset {} on", node.op_type(), name(), static_cast<int>(from));
    if (!facts_.allowed.empty() && !facts_.allowed[n]) return "they were not selected";
    if (has_other_stash_type(node)) return "an attribute gives them another type";
    if (reduces(node)) return "ONNX Runtime's CPU only has kernels of theirs that replace values";
    auto text = range_of_values(node, *rule);
    if (text.empty()) text = range_.reason_against_sums(node, rule->trait);
    return text;
  }

  // As in a body that reads a sequence: no cast could be put where one is needed.
  bool has_unknown_types(const Node& node) const {
    const auto any = [&](const auto& names) {
      return std::any_of(names.begin(), names.end(), [&](const auto& name) {
        return !name.empty() && graph::type_of(model_, types_, name) == DataType::undefined;
      });
    };
    return any(node.inputs()) || any(node.outputs());
  }

  bool is_function(const Node& node) const {
    const auto& all = model_.functions;
    return std::find(all.begin(), all.end(), node.domain() + "::" + node.op_type()) != all.end();
  }

  // LayerNormalization is asked to compute in another type than float32.
  static bool has_other_stash_type(const Node& node) {
    constexpr auto kFloat = static_cast<std::int64_t>(DataType::float32);
    return node.op_type() == "LayerNormalization" && node.int_or("stash_type", kFloat) != kFloat;
  }

  // ScatterElements and ScatterND that add or compare what they write with what is there.
  static bool reduces(const Node& node) {
    const auto* reduction = node.attribute("reduction");
    return reduction != nullptr && reduction->as_string() != "none";
  }

  std::string range_of_values(const Node& node, const FloatRule& rule) const {
    const auto& inputs = node.inputs();
    const bool is_cast = node.is("Cast");
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!is_float(inputs[i]) || in_mask(rule.float32_inputs, i) || rule.trait == FloatTrait::reads_any) continue;
      const ConstantUse use{in_mask(rule.divisors, i), in_mask(rule.bounds, i), node.is("Add") || node.is("Sub")};
      auto text = index_.initializer(inputs[i]) != graph::kNone ? range_.reason_against_constant(inputs[i], use)
                                                                : range_.reason_against_value(inputs[i]);
      if (!text.empty()) return text;
    }
    for (std::size_t o = 0; o < node.outputs().size(); ++o) {
      if (!is_float(node.outputs()[o]) || in_mask(rule.float32_outputs, o)) continue;
      auto text = range_.reason_against_value(node.outputs()[o]);
      if (text.empty() && is_cast && is_integer(inputs.at(0))) text = range_.reason_against_integers(node.outputs()[o]);
      if (!text.empty()) return text;
    }
    auto text = range_.reason_against_stored(node);
    return text.empty() ? range_.reason_against_epsilon(node) : text;
  }

  std::vector<bool> light() const {
    std::vector<bool> flags(model_.graph.nodes.size());
    for (std::size_t n = 0; n < flags.size(); ++n) {
      const auto& node = model_.graph.nodes[n];
      std::uint64_t bytes = 0;
      for (const auto& input : node.inputs()) {
        const int tensor = index_.initializer(input);
        if (tensor != graph::kNone) bytes += model_.graph.initializers[static_cast<std::size_t>(tensor)].data.size();
      }
      const bool is_product = graph::is_product(node) || node.op_type() == "MatMulNBits";
      flags[n] = !is_product && bytes <= kLightBytes;
    }
    return flags;
  }

  // Positions and sizes are exact in float32 only: what they are computed from stays, back to the last product.
  void keep_index_arithmetic() {
    const auto is_light = light();
    const auto ends = graph::index_arithmetic(model_, index_, types_).into_indices;
    for (std::size_t n = 0; n < ends.size(); ++n) {
      if (!ends[n] || !placement_.low[n] || !is_light[n]) continue;
      placement_.low[n] = false;
      reasons_[n] = "positions or sizes are computed from them";
    }
  }

  // Whether it is of the scale and the offset of a LayerNormalization in parts, which ONNX Runtime makes the operator
  // of: from opset 17 on that has one type.
  bool scales_norm(const Node& node) const {
    constexpr std::int64_t kOneType = 17;
    const auto maker = [&](const std::string& value) -> const Node* {
      const int producer = index_.producer(value);
      return producer == graph::kNone ? nullptr : &model_.graph.nodes[static_cast<std::size_t>(producer)];
    };
    const Node* step = model_.opset() >= kOneType ? &node : nullptr;
    while (step != nullptr && (step->is("Mul") || step->is("Add"))) {
      const auto constant = graph::float32_constant_step(model_, index_, *step);
      step = constant ? maker(constant->value) : nullptr;
    }
    const Node* divisor = step != nullptr && step->is("Div") ? maker(step->inputs()[1]) : nullptr;
    return divisor != nullptr && divisor->is("Sqrt");
  }

  // A result is cast before the last steps to it rather than after them: as many casts, and more digits.
  void keep_ends() {
    const auto is_light = light();
    std::vector<bool> ends(model_.graph.nodes.size());
    for (std::size_t n = ends.size(); n-- > 0;) {
      const auto& node = model_.graph.nodes[n];
      if (!placement_.low[n] || !is_light[n]) continue;
      bool all = true, any = false;
      for (const auto& output : node.outputs()) {
        if (!is_float(output)) continue;
        any = any || index_.is_output(output);
        for (const int reader : index_.consumers(output)) {
          any = any || ends[static_cast<std::size_t>(reader)];
          all = all && !placement_.low[static_cast<std::size_t>(reader)];
        }
      }
      std::set<std::string> read;
      for (const auto& input : node.inputs()) {
        if (is_float(input) && index_.initializer(input) == graph::kNone) read.insert(input);
      }
      if (!all || !any || read.size() != 1 || scales_norm(node)) continue;
      ends[n] = true;
      placement_.low[n] = false;
      reasons_[n] = "they end in a float32 result, which takes no further cast";
    }
  }

  void take_notes() {
    std::vector<std::pair<std::string, std::vector<std::string>>> groups;
    std::map<std::string, std::size_t> position;
    for (std::size_t n = 0; n < reasons_.size(); ++n) {
      if (reasons_[n].empty()) continue;
      ++placement_.kept;
      const auto [it, added] = position.try_emplace(reasons_[n], groups.size());
      if (added) groups.push_back({reasons_[n], {}});
      groups[it->second].second.push_back(model_.graph.nodes[n].label());
    }
    for (auto& [text, labels] : groups) {
      const std::size_t count = labels.size();
      if (count > kLabels) labels.resize(kLabels);
      placement_.notes.push_back(fmt::format("{} node{} in float32, since {}: {}{}", count,
                                             count == 1 ? " stays" : "s stay", text, fmt::join(labels, ", "),
                                             count > kLabels ? ", …" : ""));
    }
  }

  std::string_view name() const { return facts_.type == FloatType::float16 ? "float16" : "bfloat16"; }

  const onnx::Model& model_;
  const graph::ValueTypes& types_;
  const FloatFacts& facts_;
  graph::Index index_;
  FloatRange range_;
  FloatPlacement placement_;
  std::vector<std::string> reasons_;
};

}  // namespace

FloatPlacement place_floats(const onnx::Model& model, const graph::ValueTypes& types, const FloatFacts& facts) {
  return Placer(model, types, facts).run();
}

std::vector<std::string> float_values(const onnx::Model& model, const graph::ValueTypes& types) {
  std::vector<std::string> values;
  const auto add = [&](const std::string& name) {
    if (!name.empty() && graph::type_of(model, types, name) == DataType::float32) values.push_back(name);
  };
  for (const auto& input : model.graph.inputs) add(input.name);
  // What is dequantized from constants is known without running it.
  const auto depends = graph::depends_on_input(model, graph::Index(model));
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    if (!depends[n]) continue;
    for (const auto& output : model.graph.nodes[n].outputs()) add(output);
  }
  return values;
}

std::int64_t opset_of_floats(const onnx::Model& model, FloatType type) {
  constexpr std::int64_t kNewest = 22;
  std::int64_t opset = 0;
  for (const auto& node : model.graph.nodes) {
    const auto* rule = node.domain().empty() ? float_rule(node) : nullptr;
    if (rule == nullptr) continue;
    const std::int64_t from = type == FloatType::float16 ? rule->float16_from : rule->bfloat16_from;
    if (from <= kNewest) opset = std::max(opset, from);
  }
  return opset;
}

}  // namespace detent::quantization
