#include "run/comparison/shared_decisions.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "data/floats.h"
#include "graph/index.h"

namespace detent::run {
namespace {

constexpr std::size_t kNamed = 3;

std::string some_of(std::vector<std::string> names) {
  const bool more = names.size() > kNamed;
  if (more) names.resize(kNamed);
  return fmt::format("{}{}", fmt::join(names, ", "), more ? ", …" : "");
}

bool makes(const graph::Index& index, const onnx::Model& model, const std::string& value) {
  const int producer = index.producer(value);
  return producer != graph::kNone && model.graph.nodes[static_cast<std::size_t>(producer)].body() == 0;
}

// Puts the copies before the nodes that read them.
void insert_copies(onnx::Model& model, const std::vector<graph::Operand>& operands) {
  std::vector<onnx::Node> nodes, copies;
  for (const auto& operand : operands) copies.push_back(graph::copy_node(model, operand));
  for (std::size_t i = 0; i < operands.size(); ++i) {
    auto& node = model.graph.nodes[static_cast<std::size_t>(operands[i].node)];
    node.set_input(operands[i].input, copies[i].outputs()[0]);
  }
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].node == static_cast<int>(n)) nodes.push_back(std::move(copies[i]));
    }
    nodes.push_back(std::move(model.graph.nodes[n]));
  }
  model.graph.nodes = std::move(nodes);
}

// The best of many come out in an order: rows that are as good as equal change places, and are no other rows for that.
std::vector<std::string> nodes_that_sort(const onnx::Model& model, const graph::Decisions& decisions) {
  std::vector<std::string> labels;
  for (const auto& node : model.graph.nodes) {
    if (!node.is("TopK") || node.body() != 0 || node.outputs().size() < 2) continue;
    if (std::find(decisions.held.begin(), decisions.held.end(), node.outputs()[1]) != decisions.held.end())
      labels.push_back(node.label());
  }
  return labels;
}

}  // namespace

std::vector<std::string> decision_notes(const onnx::Model& model, const graph::Decisions& decisions) {
  std::vector<std::string> notes;
  if (const auto choosing = nodes_that_sort(model, decisions); !choosing.empty() && decisions.sizing.empty())
    notes.push_back(fmt::format(
        "values say which rows come out, and in which order ({}): what lies behind is compared where both models take "
        "the rows that the float model takes",
        some_of(choosing)));
  if (!decisions.sizing.empty())
    notes.push_back(fmt::format(
        "sizes depend on values ({}): what lies behind is compared where both models decide as the float model does{}",
        some_of(decisions.sizing),
        decisions.judged.empty() ? std::string()
                                 : ", and what they decide by is judged as well: " + some_of(decisions.judged)));
  if (!decisions.drawn.empty())
    notes.push_back(
        fmt::format("the model draws random numbers ({}): both models are compared with the same ones, those that the "
                    "float model drew",
                    some_of(decisions.drawn)));
  return notes;
}

SharedDecisions::SharedDecisions(const exec::Runtime& runtime, onnx::Model& first, onnx::Model& second) {
  // Types take a session to find out.
  const auto any = [](const graph::Decisions& found) { return !found.empty() || !found.apart.empty(); };
  if (!any(graph::find_decisions(first, {}, graph::DecisionKind::all))) return;
  const auto types = exec::infer_value_types(runtime, first);
  auto sizes = graph::find_decisions(first, types, graph::DecisionKind::sizes);
  apart_ = std::move(sizes.apart);
  const auto decisions = graph::find_decisions(first, types, graph::DecisionKind::all);
  if (sizes.sizing.empty() && sizes.drawn.empty() && nodes_that_sort(first, decisions).empty()) return;
  const graph::Index index(second);
  for (const auto& value : decisions.held) {
    if (makes(index, second, value)) taps_.push_back(value);
  }
  for (const auto& value : decisions.judged) {
    if (makes(index, second, value)) judged_.push_back(value);
  }
  add_copies(decisions.operands, first, second);
  held_.resize(taps_.size());
  notes_ = decision_notes(first, decisions);
}

void SharedDecisions::add_copies(const std::vector<graph::Operand>& operands, onnx::Model& first, onnx::Model& second) {
  const graph::Index index(second);
  std::vector<graph::Operand> of_first, of_second;
  for (const auto& operand : operands) {
    const auto& node = first.graph.nodes[static_cast<std::size_t>(operand.node)];
    const int other = index.producer(node.outputs().at(0));
    if (other == graph::kNone) continue;
    const auto& twin = second.graph.nodes[static_cast<std::size_t>(other)];
    const bool same = twin.op_type() == node.op_type() && twin.body() == 0 && twin.inputs().size() > operand.input;
    if (!same || twin.inputs()[operand.input].empty()) continue;
    of_first.push_back(operand);
    of_second.push_back({other, operand.input});
    taps_.push_back(graph::operand_copy_name(first, operand));
  }
  insert_copies(first, of_first);
  insert_copies(second, of_second);
}

void SharedDecisions::record(std::size_t tap, const data::TensorView& tensor) {
  const auto bytes = std::make_shared<const std::vector<std::byte>>(tensor.bytes.begin(), tensor.bytes.end());
  const std::lock_guard lock(mutex_);
  held_.at(tap) = {tensor.type, {tensor.shape.begin(), tensor.shape.end()}, *bytes, bytes};
}

void SharedDecisions::apply_recorded(std::size_t tap, const data::TensorView& tensor) const {
  const std::lock_guard lock(mutex_);
  const auto held = data::as_floats(held_.at(tap), tensor.type);
  if (held.type == tensor.type && held.bytes.size() == tensor.passed_on.size())
    std::copy(held.bytes.begin(), held.bytes.end(), tensor.passed_on.begin());
}

std::vector<data::Array> SharedDecisions::recorded() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

void SharedDecisions::recall(std::vector<data::Array> recorded) {
  const std::lock_guard lock(mutex_);
  held_ = std::move(recorded);
}

}  // namespace detent::run
