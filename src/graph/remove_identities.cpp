#include <fmt/format.h>

#include <unordered_map>
#include <unordered_set>

#include "graph/index.h"
#include "graph/rewrite.h"

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

}  // namespace

Notes remove_identities(onnx::Model& model) {
  const Index index(model);
  std::unordered_map<std::string, std::string> alias;  // removed output -> the value that stands in for it
  std::unordered_set<int> removed;
  const auto source = [&](std::string name) {
    while (alias.contains(name)) name = alias.at(name);
    return name;
  };
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (node.inputs().empty() || node.outputs().empty() || !passes_through(model, index, node)) continue;
    const std::string& out = node.outputs().front();
    // Graph outputs keep their names, and the bodies of control flow are not rewritten.
    if (index.is_output(out) || index.is_captured(out)) continue;
    alias[out] = node.inputs().front();
    removed.insert(static_cast<int>(n));
  }
  if (removed.empty()) return {};
  std::vector<onnx::Node> kept;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    if (removed.contains(static_cast<int>(n))) continue;
    auto& node = model.graph.nodes[n];
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (alias.contains(node.inputs()[i])) node.set_input(i, source(node.inputs()[i]));
    }
    kept.push_back(std::move(node));
  }
  model.graph.nodes = std::move(kept);
  return {fmt::format("{} Identity and Dropout nodes were removed", removed.size())};
}

}  // namespace detent::graph
