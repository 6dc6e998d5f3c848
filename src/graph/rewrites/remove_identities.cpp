#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

bool passes_through(const onnx::Model& model, const Index& index, const onnx::Node& node) {
  if (node.is("Identity")) return true;
  if (!node.is("Dropout")) return false;
  const bool mask_used = node.outputs().size() > 1 && !node.outputs()[1].empty() &&
                         (!index.consumers(node.outputs()[1]).empty() || index.is_output(node.outputs()[1]));
  if (mask_used) return false;
  if (node.inputs().size() < 3 || node.inputs()[2].empty()) return true;  // training_mode defaults to false
  const int training = index.initializer(node.inputs()[2]);
  if (training == kNone) return false;
  const auto values = onnx::to_int64s(model.graph.initializers[static_cast<std::size_t>(training)]);
  return values.size() == 1 && values[0] == 0;
}

// Max with minus infinity and Min with infinity change nothing, whatever the shape of these numbers spreads to.
std::optional<std::string> input_of_idle_bound(const onnx::Model& model, const Index& index, const ValueTypes& types,
                                               const onnx::Node& node) {
  if ((!node.is("Max") && !node.is("Min")) || node.inputs().size() != 2) return std::nullopt;
  for (std::size_t i = 0; i < 2; ++i) {
    const int constant = index.initializer(node.inputs()[i]);
    const auto& other = node.inputs()[1 - i];
    const auto rank = rank_of(types, other);
    if (constant == kNone || !rank) continue;
    const auto& tensor = model.graph.initializers[static_cast<std::size_t>(constant)];
    if (tensor.type != onnx::DataType::float32 || tensor.count() != 1 || tensor.dims.size() > *rank) continue;
    const float bound = floats_of(tensor).front();
    if (std::isinf(bound) && std::signbit(bound) == node.is("Max")) return other;
  }
  return std::nullopt;
}

// Of Where(IsNaN(x), number, x), behind a Softmax that makes x: x.
std::optional<std::string> input_of_nan_guard(const onnx::Model& model, const Index& index, const onnx::Node& node) {
  if (!node.is("Where")) return std::nullopt;
  const auto& value = node.inputs()[2];
  const int asked = index.producer(node.inputs()[0]), maker = index.producer(value);
  const auto* number = any_float_constant(model, index, node.inputs()[1]);
  if (asked == kNone || maker == kNone || number == nullptr || number->count() != 1) return std::nullopt;
  const auto& question = model.graph.nodes[static_cast<std::size_t>(asked)];
  const bool asks = question.is("IsNaN") && question.inputs()[0] == value;
  if (!asks || !model.graph.nodes[static_cast<std::size_t>(maker)].is("Softmax")) return std::nullopt;
  return value;
}

// A product with a tensor of ones, or a sum with one of zeros, that is no larger than the other: that one.
std::optional<std::string> input_of_neutral_step(const onnx::Model& model, const Index& index, const ValueTypes& types,
                                                 const onnx::Node& node) {
  if (!node.is("Add") && !node.is("Mul")) return std::nullopt;
  const auto result = static_shape(types, node.outputs()[0]);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto* tensor = float32_constant(model, index, node.inputs()[i]);
    const auto& other = node.inputs()[1 - i];
    if (tensor == nullptr || !result || static_shape(types, other) != result) continue;
    const auto values = floats_of(*tensor);
    const float neutral = node.is("Mul") ? 1 : 0;
    if (std::all_of(values.begin(), values.end(), [=](float v) { return v == neutral; })) return other;
  }
  return std::nullopt;
}

// So many nodes, each of which hands its first input (or the one that `passed` gives) on, are passed by.
template <class Passed>
std::size_t bypass(onnx::Model& model, const Index& index, const Passed& passed) {
  std::unordered_map<std::string, std::string> alias;  // removed output -> the value that stands in for it
  std::vector<bool> removed(model.graph.nodes.size());
  const auto source = [&](std::string name) {
    while (alias.contains(name)) name = alias.at(name);
    return name;
  };
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (node.inputs().empty() || node.outputs().empty()) continue;
    const std::string& out = node.outputs().front();
    // Graph outputs keep their names, and the bodies of control flow are not rewritten.
    if (index.is_output(out) || index.is_captured(out)) continue;
    const auto value = passed(node);
    if (!value) continue;
    alias[out] = *value;
    removed[n] = true;
  }
  remove_nodes(model, removed);
  for (auto& node : model.graph.nodes) {
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (alias.contains(node.inputs()[i])) node.set_input(i, source(node.inputs()[i]));
    }
  }
  return alias.size();
}

}  // namespace

void resolve_cast_likes(onnx::Model& model, const ValueTypes& types) {
  for (auto& node : model.graph.nodes) {
    if (!node.is("CastLike") || node.inputs().size() != 2) continue;
    const auto type = type_of(model, types, node.inputs()[1]);
    if (type == onnx::DataType::undefined) continue;
    const bool same = type_of(model, types, node.inputs()[0]) == type;
    node.set_op_type(same ? "Identity" : "Cast");
    node.set_inputs({node.inputs()[0]});
    if (same) {
      node.remove_attribute("saturate");
    } else {
      node.set_attribute(onnx::Attribute::of_int("to", static_cast<std::int64_t>(type)));
    }
  }
}

Notes remove_identities(onnx::Model& model) {
  const Index index(model);
  const std::size_t removed = bypass(model, index, [&](const onnx::Node& node) {
    return passes_through(model, index, node) ? std::make_optional(node.inputs().front()) : std::nullopt;
  });
  if (removed == 0) return {};
  return {fmt::format("removed: {}", count_with_noun(removed, "Identity or Dropout node"))};
}

Notes remove_softmax_guards(onnx::Model& model) {
  const std::size_t removed = [&] {
    const Index index(model);
    return bypass(model, index, [&](const onnx::Node& node) { return input_of_nan_guard(model, index, node); });
  }();
  if (removed == 0) return {};
  const Index index(model);
  std::vector<bool> unread(model.graph.nodes.size());
  for (std::size_t n = 0; n < unread.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    const auto& out = node.outputs().front();
    unread[n] = node.is("IsNaN") && index.consumers(out).empty() && !index.is_output(out);
  }
  remove_nodes(model, unread);
  drop_unused_initializers(model);
  return {"removed: " + count_with_noun(removed, "question") +
          " whether a Softmax gives NaN, which integers do not hold"};
}

Notes remove_neutral_arithmetic(onnx::Model& model, const ValueTypes& types) {
  const Index index(model);
  const std::size_t removed = bypass(model, index, [&](const onnx::Node& node) -> std::optional<std::string> {
    if (auto passed = input_of_idle_bound(model, index, types, node)) return passed;
    if (auto passed = input_of_neutral_step(model, index, types, node)) return passed;
    const auto step = scalar_step(model, index, types, node);
    return step && step->number == (step->multiplies ? 1 : 0) ? std::make_optional(step->value) : std::nullopt;
  });
  if (removed == 0) return {};
  drop_unused_initializers(model);
  return {"removed: " + count_with_noun(removed, "node") +
          " (multiplications by 1, additions of 0, bounds at infinity)"};
}

}  // namespace detent::graph
