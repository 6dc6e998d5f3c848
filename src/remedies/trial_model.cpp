#include "remedies/trial_model.h"

#include <algorithm>
#include <map>
#include <set>

#include "data/floats.h"
#include "graph/decisions.h"
#include "graph/index.h"
#include "graph/traits.h"

namespace detent::remedies {
namespace {

using onnx::Node;

bool holds_floats(const onnx::Model& model, const graph::ValueTypes& types, const std::string& value) {
  return data::holds_floats(graph::type_of(model, types, value));
}

void add_point(const std::string& value, std::vector<std::string>& points) {
  if (std::find(points.begin(), points.end(), value) == points.end()) points.push_back(value);
}

// The copies to make, by the nodes that read them.
std::map<int, std::vector<graph::Operand>> hold_decisions(const graph::Decisions& decisions, TrialModel& trial) {
  std::map<int, std::vector<graph::Operand>> copies;
  trial.taps = decisions.held;
  for (const auto& operand : decisions.operands) {
    copies[operand.node].push_back(operand);
    const auto name = graph::operand_copy_name(trial.model, operand);
    const auto& read = trial.model.graph.nodes[static_cast<std::size_t>(operand.node)].inputs()[operand.input];
    if (const auto type = trial.types.find(read); type != trial.types.end()) {
      auto copied = type->second;
      trial.types[name] = std::move(copied);
    }
    trial.taps.push_back(name);
  }
  trial.held.insert(trial.taps.begin(), trial.taps.end());
  return copies;
}

void add_points(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                const std::string& value, std::vector<std::string>& points) {
  if (!holds_floats(model, types, value)) return;
  const int producer = index.producer(value);
  if (producer == graph::kNone || std::find(points.begin(), points.end(), value) != points.end()) return;
  const Node& node = model.graph.nodes[static_cast<std::size_t>(producer)];
  if (!graph::has_trait(node, graph::Trait::judged_by_inputs)) {
    points.push_back(value);
    return;
  }
  const std::size_t parts = graph::has_trait(node, graph::Trait::joins) ? node.inputs().size() : 1;
  for (std::size_t i = 0; i < parts; ++i) add_points(model, index, types, node.inputs()[i], points);
}

// The floats that integers are made from: sizes do not count.
void add_floats_behind(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                       const std::string& integers, std::vector<std::string>& found) {
  std::vector<std::string> open{integers};
  std::set<std::string> seen;
  while (!open.empty()) {
    const auto value = std::move(open.back());
    open.pop_back();
    const int producer = index.producer(value);
    if (producer == graph::kNone || !seen.insert(value).second) continue;
    if (holds_floats(model, types, value)) {
      add_point(value, found);
      continue;
    }
    const Node& node = model.graph.nodes[static_cast<std::size_t>(producer)];
    if (!node.is("Shape") && !node.is("Size")) open.insert(open.end(), node.inputs().begin(), node.inputs().end());
  }
}

}  // namespace

std::vector<std::string> judged_values(const onnx::Model& model, const graph::ValueTypes& types) {
  const graph::Index index(model);
  std::vector<std::string> judged;
  const auto& outputs = model.graph.outputs;
  for (const auto& output : outputs) {
    if (holds_floats(model, types, output.name) && index.producer(output.name) != graph::kNone)
      judged.push_back(output.name);
  }
  const bool are_floats = std::any_of(outputs.begin(), outputs.end(),
                                      [&](const auto& output) { return holds_floats(model, types, output.name); });
  for (std::size_t i = 0; i < outputs.size() && !are_floats; ++i)
    add_floats_behind(model, index, types, outputs[i].name, judged);
  return judged;
}

std::vector<int> TrialModel::map_cuts(const std::vector<int>& cuts) const {
  std::vector<int> mapped;
  mapped.reserve(cuts.size());
  for (const int cut : cuts) mapped.push_back(position.at(static_cast<std::size_t>(cut)));
  return mapped;
}

TrialModel make_trial_model(const onnx::Model& model, const graph::ValueTypes& types,
                            const quantization::Placement& placement, const quantization::AssignedValues& values) {
  TrialModel trial{model, types, {}, {}, {}, {}, {}, {}, {}, {}};
  graph::Index index(model);
  const auto decisions = graph::find_decisions(model, types, graph::DecisionKind::all);
  auto copies = hold_decisions(decisions, trial);
  trial.apart = decisions.apart;
  std::unordered_map<int, std::vector<Node>> after;  // by producer; kNone: graph inputs
  std::unordered_map<std::string, std::string> reads_instead;
  for (const auto& mark : placement.marks) {
    // A table is rounded where its rows come out.
    if (!values.contains(mark.value) || (mark.is_constant && !mark.is_weight) || trial.held.contains(mark.value))
      continue;
    trial.taps.push_back(mark.value);
    if (mark.is_weight) trial.weights.insert(mark.value);
    if (!mark.float_readers_unrounded) {
      trial.mark_of[mark.value] = mark.value;
      continue;
    }
    const std::string copy = index.fresh_name(mark.value + "@integers");
    // A Max of one value: the runtime takes out an Identity, and with it, behind other such nodes, what reads it.
    after[index.producer(mark.value)].emplace_back("Max", index.fresh_name(mark.value + "@copy"),
                                                   std::vector{mark.value}, std::vector{copy},
                                                   std::vector<onnx::Attribute>{}, "");
    reads_instead[mark.value] = copy;
    if (const auto found = types.find(mark.value); found != types.end()) trial.types[copy] = found->second;
    trial.taps.push_back(copy);
    trial.mark_of[copy] = mark.value;
  }
  std::vector<Node> nodes = std::move(after[graph::kNone]);
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    trial.position.push_back(static_cast<int>(nodes.size()));
    Node node = model.graph.nodes[n];
    for (const auto& operand : copies[static_cast<int>(n)]) {
      nodes.push_back(graph::copy_node(model, operand));
      node.set_input(operand.input, graph::operand_copy_name(model, operand));
    }
    for (std::size_t i = 0; placement.selected[n] && i < node.inputs().size(); ++i) {
      const auto found = reads_instead.find(node.inputs()[i]);
      if (found != reads_instead.end()) node.set_input(i, found->second);
    }
    nodes.push_back(std::move(node));
    for (auto& copy : after[static_cast<int>(n)]) nodes.push_back(std::move(copy));
  }
  trial.position.push_back(static_cast<int>(nodes.size()));
  trial.model.graph.nodes = std::move(nodes);
  trial.outputs = judged_values(model, types);
  for (const auto& output : trial.outputs) add_points(model, index, types, output, trial.points);
  for (const auto& value : decisions.judged) add_point(value, trial.points);
  return trial;
}

}  // namespace detent::remedies
