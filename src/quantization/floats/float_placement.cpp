#include "quantization/floats/float_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "graph/constants.h"
#include "graph/decisions.h"
#include "graph/execution.h"
#include "graph/operators.h"
#include "graph/traits.h"
#include "onnx/bodies.h"
#include "quantization/floats/float_rules.h"

namespace detent::quantization {

namespace {

using onnx::DataType;
using onnx::Node;

constexpr int kPasses = 3;

// What is between nodes: the float32 values that are no constants.
class CastCounter {
 public:
  CastCounter(const onnx::Model& model, const graph::ValueTypes& types, const graph::Index& index, bool keep_io_types,
              std::vector<bool>& low)
      : low_(low), touched_(low.size()) {
    std::unordered_map<std::string, std::size_t> known;
    const auto value = [&](const std::string& name) -> Value& {
      const auto [it, added] = known.try_emplace(name, values_.size());
      if (added) {
        const bool output = index.is_output(name);
        values_.push_back({-1,
                           false,
                           !keep_io_types,
                           index.is_captured(name) || (output && keep_io_types),
                           output && !keep_io_types,
                           {}});
      }
      return values_[it->second];
    };
    for (std::size_t n = 0; n < low.size(); ++n) {
      const auto& node = model.graph.nodes[n];
      const auto* rule = float_rule(node);
      const auto is_float = [&](const std::string& name) {
        return !name.empty() && index.initializer(name) == graph::kNone &&
               graph::type_of(model, types, name) == onnx::DataType::float32;
      };
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (!is_float(node.inputs()[i])) continue;
        const bool any = rule != nullptr && rule->trait == FloatTrait::reads_any;
        const bool fixed = rule != nullptr && in_mask(rule->float32_inputs, i);
        auto& read = value(node.inputs()[i]);
        if (!any) read.readers.push_back({n, fixed});
        touched_[n].push_back(known.at(node.inputs()[i]));
      }
      for (std::size_t o = 0; o < node.outputs().size(); ++o) {
        if (!is_float(node.outputs()[o])) continue;
        auto& made = value(node.outputs()[o]);
        made.producer = static_cast<int>(n);
        made.fixed = rule != nullptr && in_mask(rule->float32_outputs, o);
        touched_[n].push_back(known.at(node.outputs()[o]));
      }
    }
  }

  // Casts of all values that these nodes read or make.
  std::size_t casts(const std::vector<std::size_t>& nodes) const {
    std::set<std::size_t> around;
    for (const auto n : nodes) around.insert(touched_[n].begin(), touched_[n].end());
    return static_cast<std::size_t>(
        std::count_if(around.begin(), around.end(), [&](std::size_t v) { return is_cast(values_[v]); }));
  }

  // The light nodes in 16 bits that hang together with this one.
  std::vector<std::size_t> piece(std::size_t start, const std::vector<bool>& light, std::vector<bool>& seen) const {
    std::vector<std::size_t> nodes{start};
    seen[start] = true;
    for (std::size_t at = 0; at < nodes.size(); ++at) {
      for (const auto v : touched_[nodes[at]]) {
        const auto visit = [&](std::size_t n) {
          if (seen[n] || !light[n] || !low_[n]) return;
          seen[n] = true;
          nodes.push_back(n);
        };
        if (values_[v].producer >= 0) visit(static_cast<std::size_t>(values_[v].producer));
        for (const auto& [reader, fixed] : values_[v].readers) visit(reader);
      }
    }
    return nodes;
  }

 private:
  struct Reader {
    std::size_t node;
    bool fixed;  // reads float32 whatever its own type
  };
  struct Value {
    int producer;
    bool fixed;         // made as float32 whatever the type of its producer
    bool input_is_low;  // of values without a producer
    bool wanted_high, wanted_low;
    std::vector<Reader> readers;
  };

  bool is_cast(const Value& v) const {
    const bool made_low = v.producer < 0 ? v.input_is_low : low_[static_cast<std::size_t>(v.producer)] && !v.fixed;
    if (made_low ? v.wanted_high : v.wanted_low) return true;
    return std::any_of(v.readers.begin(), v.readers.end(),
                       [&](const Reader& r) { return (low_[r.node] && !r.fixed) != made_low; });
  }

  const std::vector<bool>& low_;
  std::vector<Value> values_;
  std::vector<std::vector<std::size_t>> touched_;  // values of each node
};

// Moves nodes that are `light` from 16 bits (a flag in `low`) to float32 where that takes fewer casts, alone or with
// the light nodes around them; returns which.
std::vector<std::size_t> merge_islands(const onnx::Model& model, const graph::ValueTypes& types,
                                       const graph::Index& index, bool keep_io_types, const std::vector<bool>& light,
                                       std::vector<bool>& low) {
  const CastCounter borders(model, types, index, keep_io_types, low);
  std::vector<std::size_t> moved;
  const auto move_if_better = [&](const std::vector<std::size_t>& nodes) {
    const auto before = borders.casts(nodes);
    for (const auto n : nodes) low[n] = false;
    const bool better = borders.casts(nodes) < before;
    for (const auto n : nodes) low[n] = !better;
    if (better) moved.insert(moved.end(), nodes.begin(), nodes.end());
    return better;
  };
  for (int pass = 0; pass < kPasses; ++pass) {
    bool any = false;
    std::vector<bool> seen(low.size());
    for (std::size_t n = 0; n < low.size(); ++n) {
      if (!light[n] || !low[n]) continue;
      if (!seen[n]) any = move_if_better(borders.piece(n, light, seen)) || any;
      if (low[n]) any = move_if_better({n}) || any;
    }
    if (!any) break;
  }
  std::sort(moved.begin(), moved.end());
  return moved;
}

constexpr std::size_t kLabels = 3;  // that a note lists

// Nodes that read more constants than this are not moved to float32 for the sake of fewer casts.
constexpr std::uint64_t kLightBytes = std::uint64_t{64} << 10;

class Placer {
 public:
  Placer(const onnx::Model& model, const graph::ValueTypes& types, const FloatFacts& facts)
      : model_(model),
        types_(types),
        facts_(facts),
        index_(model),
        range_(model, index_, types, facts.type, facts.statistics) {}

  Placement run() {
    const std::size_t count = model_.graph.nodes.size();
    reasons_.resize(count);
    placement_.float_type = facts_.type;
    placement_.keep_io_types = facts_.keep_io_types;
    placement_.selected.assign(count, false);
    for (std::size_t n = 0; n < count; ++n) {
      if (!has_floats(n)) continue;
      reasons_[n] = reason(n);
      placement_.selected[n] = reasons_[n].empty();
    }
    keep_index_arithmetic();
    if (facts_.type == FloatType::float16) keep_from_zero();
    for (const auto n : merge_islands(model_, types_, index_, facts_.keep_io_types, light(), placement_.selected))
      reasons_[n] = "they lie between nodes that do, and casts are saved";
    // ONNX Runtime makes one operator of a LayerNormalization in parts, also where it ends in float32; and takes it
    // with inputs of bfloat16 then for invalid.
    if (facts_.keep_io_types && facts_.type != FloatType::bfloat16) keep_ends();
    placement_.quantized =
        static_cast<std::size_t>(std::count(placement_.selected.begin(), placement_.selected.end(), true));
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
    if (reduces(node)) return "ONNX Runtime's CPU has kernels only for replacing values";
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
      const ConstantUse use{in_mask(rule.divisors, i), in_mask(rule.bounds, i), graph::is_on(node, graph::List::adds)};
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
      const bool is_product = graph::is_product(node) || node.op_type() == "MatMulNBits";
      flags[n] = !is_product && graph::constant_bytes(model_, index_, node) <= kLightBytes;
    }
    return flags;
  }

  // Positions and sizes are exact in float32 only: what they are computed from stays, back to the last product.
  void keep_index_arithmetic() {
    const auto is_light = light();
    const auto ends = graph::index_arithmetic(model_, index_, types_).into_indices;
    for (std::size_t n = 0; n < ends.size(); ++n) {
      if (!ends[n] || !placement_.selected[n] || !is_light[n]) continue;
      placement_.selected[n] = false;
      reasons_[n] = "positions or sizes are computed from them";
    }
  }

  // Logarithms, roots and divisors: a number that becomes zero makes them infinite, or what follows.
  bool breaks_at_zero(const Node& node, std::size_t input) const {
    const auto* rule = float_rule(node);
    if (node.is("Pow")) {
      const auto* exponents = graph::any_float_constant(model_, index_, node.inputs()[1]);
      return exponents != nullptr && input == 0 &&
             std::ranges::any_of(graph::floats_of(*exponents), [](float e) { return e < 1; });
    }
    return graph::is_on(node, graph::List::logarithms) || node.is("Sqrt") || node.is("Reciprocal") ||
           (rule != nullptr && in_mask(rule->divisors, input));
  }

  void keep_from_zero() {
    for (const auto& node : model_.graph.nodes) {
      const auto& inputs = node.inputs();
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!is_float(inputs[i]) || index_.producer(inputs[i]) == graph::kNone || !breaks_at_zero(node, i)) continue;
        const auto vanishes = range_.vanishes(inputs[i]);
        const bool unknown = !vanishes && graph::is_on(node, graph::List::logarithms);
        if (vanishes.value_or(unknown && may_vanish(inputs[i]))) keep_digits(node, inputs[i]);
      }
    }
  }

  const Node* maker(const std::string& value) const {
    const int producer = index_.producer(value);
    return producer == graph::kNone ? nullptr : &model_.graph.nodes[static_cast<std::size_t>(producer)];
  }

  std::size_t position(const Node& node) const { return static_cast<std::size_t>(&node - model_.graph.nodes.data()); }

  // But for a constant that the type does not have, or by its operator.
  bool may_vanish(const std::string& value) const {
    const Node* node = maker(value);
    if (node == nullptr) return false;
    if (graph::traits_of(*node).counting == graph::Counting::moves) return may_vanish(node->inputs()[0]);
    return reasons_[position(*node)] == kTooSmall || node->is("Softmax") || node->is("Sigmoid");
  }

  // The reader, and what makes the numbers that it reads.
  void keep_digits(const Node& reader, const std::string& value) {
    keep_digits(reader);
    for (const Node* node = maker(value); node != nullptr; node = maker(node->inputs()[0])) {
      keep_digits(*node);
      if (graph::traits_of(*node).counting != graph::Counting::moves) return;
    }
  }

  void keep_digits(const Node& node) {
    const auto n = position(node);
    if (!placement_.selected[n]) return;
    placement_.selected[n] = false;
    reasons_[n] = "numbers that the type makes zeros of would be a logarithm's, a root's or a divisor's";
  }

  // Whether it is of the scale and the offset of a LayerNormalization in parts, which ONNX Runtime makes the operator
  // of: from opset 17 on that has one type.
  bool scales_norm(const Node& node) const {
    constexpr std::int64_t kOneType = 17;
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
      if (!placement_.selected[n] || !is_light[n]) continue;
      bool all = true, any = false;
      for (const auto& output : node.outputs()) {
        if (!is_float(output)) continue;
        any = any || index_.is_output(output);
        for (const int reader : index_.consumers(output)) {
          any = any || ends[static_cast<std::size_t>(reader)];
          all = all && !placement_.selected[static_cast<std::size_t>(reader)];
        }
      }
      std::set<std::string> read;
      for (const auto& input : node.inputs()) {
        if (is_float(input) && index_.initializer(input) == graph::kNone) read.insert(input);
      }
      if (!all || !any || read.size() != 1 || scales_norm(node)) continue;
      ends[n] = true;
      placement_.selected[n] = false;
      reasons_[n] = "the result is float32 and needs no further cast";
    }
  }

  void take_notes() {
    std::vector<std::pair<std::string, std::vector<std::string>>> groups;
    std::map<std::string, std::size_t> position;
    for (std::size_t n = 0; n < reasons_.size(); ++n) {
      if (reasons_[n].empty()) continue;
      ++placement_.in_float;
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
  Placement placement_;
  std::vector<std::string> reasons_;
};

}  // namespace

Placement place_floats(const onnx::Model& model, const graph::ValueTypes& types, const FloatFacts& facts) {
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
