#include "graph/decisions.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "graph/operators.h"
#include "graph/traits.h"
#include "onnx/bodies.h"

namespace detent::graph {
namespace {

using onnx::DataType;
using onnx::Node;

constexpr std::size_t kFarthest = 256;  // nodes between a size and what it is made from

// What these make changes by leaps where what they read changes a little.
bool leaps(const Node& node, const std::string& output) {
  if (node.is("TopK")) return node.outputs().size() > 1 && node.outputs()[1] == output;
  return is_on(node, List::leaps);
}

bool measures_shape(const Node& node) { return is_on(node, List::measures); }

// Whether how many elements the node's results have depends on what this input holds.
bool sets_output_size(const Node& node, std::size_t input) {
  return input < 16 && (operator_of(node).deciding.sizes >> input & 1U) != 0;
}

class Finder {
 public:
  Finder(const onnx::Model& model, const ValueTypes& types, DecisionKind kind)
      : model_(model), types_(types), kind_(kind), index_(model) {
    for (const auto& input : model.graph.inputs) {
      if (index_.initializer(input.name) != kNone) continue;
      varies_.insert(input.name);
      if (may_be_rounded(input.name)) rounded_.insert(input.name);
    }
  }

  Decisions run() {
    const auto& nodes = model_.graph.nodes;
    for (const auto& node : nodes) spread(node);
    for (const auto& output : model_.graph.outputs) {
      if (loose_.contains(output.name)) wanted_.insert(output.name);
    }
    std::vector<bool> held(nodes.size());
    for (std::size_t n = nodes.size(); n-- > 0;) {
      if (nodes[n].body() == 0) held[n] = decide(static_cast<int>(n));
    }
    std::reverse(found_.sizing.begin(), found_.sizing.end());
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      if (!held[n] && (sizes_itself(nodes[n]) || takes_size_of(nodes[n], found_.apart)))
        found_.apart.insert(nodes[n].outputs().begin(), nodes[n].outputs().end());
    }
    return std::move(found_);
  }

 private:
  bool has_types() const { return !types_.empty(); }
  bool is_float(const std::string& value) const {
    const auto type = type_of(model_, types_, value);
    return type == DataType::float32 || type == DataType::float16 || type == DataType::bfloat16 ||
           type == DataType::float64;
  }
  bool may_be_rounded(const std::string& value) const { return !has_types() || is_float(value); }

  // What a node makes: whether it follows from what the inputs hold, whether rounding may change it, and whether the
  // number of its elements may change so.
  void spread(const Node& node) {
    const auto any = [&](const std::unordered_set<std::string>& set) {
      return std::any_of(node.inputs().begin(), node.inputs().end(), [&](const auto& v) { return set.contains(v); });
    };
    const bool measures = measures_shape(node), random = draws_numbers(model_, index_, node);
    bool varies = (!measures && any(varies_)) || random || has_bodies(node);
    const bool from_table = has_trait(node, Trait::looks_up) && varies &&
                            index_.initializer(node.inputs().at(0)) != kNone && may_be_rounded(node.outputs().at(0));
    const bool rounded = measures ? any(loose_) : any(rounded_) || random || from_table || makes_floats_in_bodies(node);
    varies = varies || rounded;
    const bool loose = takes_size_of(node, loose_) || sizes_itself(node);
    for (const auto& output : node.outputs()) {
      if (output.empty()) continue;
      if (varies) varies_.insert(output);
      if (rounded) rounded_.insert(output);
      if (loose) loose_.insert(output);
    }
  }

  static bool has_bodies(const Node& node) { return has_body(node) || !node.bodies().empty(); }

  bool makes_floats_in_bodies(const Node& node) const {
    if (!has_bodies(node)) return false;
    const auto captured = captured_names(model_, node);
    return std::any_of(node.outputs().begin(), node.outputs().end(),
                       [&](const auto& v) { return may_be_rounded(v); }) ||
           std::any_of(captured.begin(), captured.end(), [&](const auto& v) { return rounded_.contains(v); });
  }

  // Whether what it reads says how many elements it makes.
  bool sizes_itself(const Node& node) const {
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (sets_output_size(node, i) && rounded_.contains(node.inputs()[i])) return true;
    }
    return false;
  }

  // Whether it makes as many elements as one of these values has.
  static bool takes_size_of(const Node& node, const std::unordered_set<std::string>& values) {
    if (measures_shape(node)) return false;
    const bool scatters = is_on(node, List::scatters);
    const auto& inputs = node.inputs();
    const auto end = scatters && !inputs.empty() ? inputs.begin() + 1 : inputs.end();
    return std::any_of(inputs.begin(), end, [&](const auto& input) { return values.contains(input); });
  }

  // Holds what the node decides by, and says whether nothing is left open of how many elements it makes, but for its
  // inputs.
  bool decide(int n) {
    const auto& node = model_.graph.nodes[static_cast<std::size_t>(n)];
    if (draws_numbers(model_, index_, node)) {
      for (const auto& output : node.outputs()) {
        if (output.empty()) continue;
        hold(output);
        found_.drawn.push_back(output);
      }
    }
    if (kind_ == DecisionKind::all) choose(node);
    const auto& outputs = node.outputs();
    if (std::none_of(outputs.begin(), outputs.end(), [&](const auto& v) { return wanted_.contains(v); })) return false;
    for (const auto& input : node.inputs()) {
      if (loose_.contains(input)) wanted_.insert(input);
    }
    if (!sizes_itself(node)) return true;
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      const auto& value = node.inputs()[i];
      if (sets_output_size(node, i) && rounded_.contains(value) && !settle(value, 0)) hold_operand({n, i}, value);
    }
    found_.sizing.push_back(node.label());
    return true;
  }

  // Of the best of many, which ones they are, where others are picked by that.
  void choose(const Node& node) {
    const auto choices = operator_of(node).deciding.choices;
    for (std::size_t i = 0; i < node.inputs().size() && i < 16; ++i) {
      if ((choices >> i & 1U) != 0) hold_best(node.inputs()[i], 0);
    }
  }

  void hold_best(const std::string& value, std::size_t far) {
    const int producer = index_.producer(value);
    if (producer == kNone || far > kFarthest || !rounded_.contains(value) || is_float(value)) return;
    if (!sought_.insert(value).second) return;
    const auto& node = model_.graph.nodes[static_cast<std::size_t>(producer)];
    if (node.body() != 0 || has_bodies(node)) return;
    if (!is_on(node, List::picks_best)) {
      for (const auto& input : node.inputs()) hold_best(input, far + 1);
      return;
    }
    hold(value);
    judge(node.inputs()[0]);
  }

  void hold(const std::string& value) {
    if (held_.insert(value).second) found_.held.push_back(value);
  }

  void hold_operand(const Operand& operand, const std::string& value) {
    found_.operands.push_back(operand);
    judge(value);
  }

  void judge(const std::string& value) {
    const bool judged = index_.producer(value) != kNone && rounded_.contains(value) && is_float(value);
    if (judged && judged_.insert(value).second) found_.judged.push_back(value);
  }

  // Whether the value is certain once values are held, which then are.
  bool settle(const std::string& value, std::size_t far) {
    if (value.empty() || !rounded_.contains(value) || held_.contains(value)) return true;
    const int producer = index_.producer(value);
    if (producer == kNone || far > kFarthest) return false;
    if (const auto known = settled_.find(value); known != settled_.end()) return known->second;
    return settled_[value] = settle_by(model_.graph.nodes[static_cast<std::size_t>(producer)], value, far);
  }

  bool settle_by(const Node& node, const std::string& value, std::size_t far) {
    if (node.body() != 0) return false;
    // Of values whose sizes are settled where they are made.
    const bool decides_itself = is_on(node, List::decides_itself);
    if (measures_shape(node) || (decides_itself && !is_float(value))) {
      wanted_.insert(measures_shape(node) ? node.inputs()[0] : value);
      return true;
    }
    if (leaps(node, value)) {
      hold(value);
      for (const auto& input : node.inputs()) judge(input);
      return true;
    }
    if (is_product(node) || has_bodies(node)) return false;
    const bool all = std::all_of(node.inputs().begin(), node.inputs().end(),
                                 [&](const auto& input) { return settle(input, far + 1); });
    if (all || is_float(value)) return all;
    hold(value);
    for (const auto& input : node.inputs()) judge(input);
    return true;
  }

  const onnx::Model& model_;
  const ValueTypes& types_;
  DecisionKind kind_;
  Index index_;
  Decisions found_;
  std::unordered_set<std::string> varies_, rounded_, loose_;  // see spread()
  std::unordered_set<std::string> wanted_;                    // loose values that sizes of outputs follow from
  std::unordered_set<std::string> held_, judged_, sought_;
  std::unordered_map<std::string, bool> settled_;
};

}  // namespace

bool draws_numbers(const onnx::Model& model, const Index& index, const Node& node) {
  if (node.op_type() == onnx::kBodyInputs) return false;
  if (has_trait(node, Trait::random)) return true;
  constexpr std::size_t kTraining = 2;  // input
  if (!node.is("Dropout") || node.inputs().size() <= kTraining || node.inputs()[kTraining].empty()) return false;
  const int training = index.initializer(node.inputs()[kTraining]);
  if (training == kNone) return true;
  const auto& tensor = model.graph.initializers[static_cast<std::size_t>(training)];
  return std::any_of(tensor.data.bytes().begin(), tensor.data.bytes().end(),
                     [](std::byte b) { return b != std::byte(0); });
}

bool draws_numbers(const onnx::Model& model) {
  const Index index(model);
  return std::any_of(model.graph.nodes.begin(), model.graph.nodes.end(),
                     [&](const auto& node) { return draws_numbers(model, index, node); });
}

Decisions find_decisions(const onnx::Model& model, const ValueTypes& types, DecisionKind kind) {
  return Finder(model, types, kind).run();
}

std::string operand_copy_name(const onnx::Model& model, const Operand& operand) {
  return fmt::format("{}@operand{}", model.graph.nodes[static_cast<std::size_t>(operand.node)].outputs().at(0),
                     operand.input);
}

onnx::Node copy_node(const onnx::Model& model, const Operand& operand) {
  const auto name = operand_copy_name(model, operand);
  const auto& node = model.graph.nodes[static_cast<std::size_t>(operand.node)];
  return {"Identity", name, std::vector{node.inputs()[operand.input]}, std::vector{name}};
}

namespace {

bool is_float(DataType type) {
  return type == DataType::float32 || type == DataType::float16 || type == DataType::bfloat16 ||
         type == DataType::float64;
}

bool may_be_index_arithmetic(const Node& node) {
  return !is_product(node) && !has_body(node) && node.bodies().empty() && node.op_type() != onnx::kBodyInputs;
}

std::vector<bool> from_shapes(const onnx::Model& model, const Index& index) {
  const auto depends = depends_on_input(model, index);
  std::unordered_set<std::string> varies;  // by what inputs hold
  for (const auto& input : model.graph.inputs) varies.insert(input.name);
  std::vector<bool> flags(model.graph.nodes.size());
  for (std::size_t n = 0; n < flags.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    const bool measures = measures_shape(node);
    const auto reads = [&](const auto& names) {
      return std::any_of(names.begin(), names.end(), [&](const auto& name) { return varies.contains(name); });
    };
    const bool any = !may_be_index_arithmetic(node) || draws_numbers(model, index, node) || node.body() != 0 ||
                     (!measures && reads(node.inputs()));
    if (any) varies.insert(node.outputs().begin(), node.outputs().end());
    flags[n] = !any && depends[n];
  }
  return flags;
}

class Ends {
 public:
  Ends(const onnx::Model& model, const Index& index, const ValueTypes& types)
      : model_(model), index_(index), types_(types), counts_(model.graph.nodes.size()) {}

  std::vector<bool> run() {
    for (std::size_t n = counts_.size(); n-- > 0;) counts_[n] = counts(model_.graph.nodes[n]);
    return std::move(counts_);
  }

 private:
  bool counts(const Node& node) const {
    if (!may_be_index_arithmetic(node)) return false;
    bool any = false;
    for (const auto& output : node.outputs()) {
      if (!is_float(type_of(model_, types_, output))) continue;
      if (index_.is_output(output) || index_.is_captured(output)) return false;
      for (const int reader : index_.consumers(output)) {
        any = true;
        if (!counts_[static_cast<std::size_t>(reader)] && !makes_an_index(output, reader)) return false;
      }
    }
    return any;
  }

  // Whether the node takes the value as a size, or makes integers of it.
  bool makes_an_index(const std::string& value, int reader) const {
    const auto& node = model_.graph.nodes[static_cast<std::size_t>(reader)];
    if (node.is("Cast")) {
      const auto to = type_of(model_, types_, node.outputs().at(0));
      return to != DataType::boolean && to != DataType::undefined && !is_float(to);
    }
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (node.inputs()[i] == value && !sets_output_size(node, i)) return false;
    }
    return true;
  }

  const onnx::Model& model_;
  const Index& index_;
  const ValueTypes& types_;
  std::vector<bool> counts_;
};

}  // namespace

IndexArithmetic index_arithmetic(const onnx::Model& model, const Index& index, const ValueTypes& types) {
  return {from_shapes(model, index), Ends(model, index, types).run()};
}

}  // namespace detent::graph
