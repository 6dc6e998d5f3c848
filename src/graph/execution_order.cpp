#include "graph/execution_order.h"

#include <algorithm>
#include <set>

#include "graph/bodies.h"

namespace detent::graph {
namespace {

// Nodes that make what the node reads, ascending.
std::set<int> producers_of(const onnx::Model& model, const Index& index, const onnx::Node& node) {
  std::set<int> producers;
  const auto add = [&](const std::string& name) {
    const int producer = index.producer(name);
    if (producer != kNone) producers.insert(producer);
  };
  for (const auto& name : node.inputs()) add(name);
  if (!has_body(node)) return producers;
  for (const auto& name : captured_names(model, node)) add(name);
  return producers;
}

bool is_leaf(const Index& index, const onnx::Node& node) {
  return std::all_of(node.outputs().begin(), node.outputs().end(),
                     [&](const auto& name) { return name.empty() || index.consumers(name).empty(); });
}

struct Step {
  int node = kNone;
  bool producers_are_done = false;
};

}  // namespace

std::vector<int> execution_order(const onnx::Model& model, const Index& index) {
  const auto& nodes = model.graph.nodes;
  std::vector<Step> open;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (is_leaf(index, nodes[n])) open.push_back({static_cast<int>(n), false});
  }
  std::vector<bool> seen(nodes.size(), false);
  std::vector<int> order;
  order.reserve(nodes.size());
  while (!open.empty()) {
    const Step step = open.back();
    open.pop_back();
    if (step.producers_are_done) {
      order.push_back(step.node);
      continue;
    }
    const auto n = static_cast<std::size_t>(step.node);
    if (seen[n]) continue;
    seen[n] = true;
    open.push_back({step.node, true});
    for (const int producer : producers_of(model, index, nodes[n])) open.push_back({producer, false});
  }
  return order;
}

}  // namespace detent::graph
