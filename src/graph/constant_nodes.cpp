#include <fmt/format.h>

#include <set>
#include <unordered_map>

#include "graph/bodies.h"
#include "graph/index.h"
#include "graph/rewrite.h"

namespace detent::graph {
namespace {

constexpr std::uint64_t kAlwaysFold = std::uint64_t{1} << 20;
constexpr std::uint64_t kGrowth = 4;

bool is_quantization(const onnx::Node& node) {
  return node.op_type() == "QuantizeLinear" || node.op_type() == "DequantizeLinear";
}

}  // namespace

std::vector<int> constant_nodes(const onnx::Model& model, const ValueTypes& types) {
  const Index index(model);
  const auto depends = depends_on_input(model, index);
  std::unordered_map<std::string, std::uint64_t> known;  // constants and their bytes
  for (const auto& tensor : model.graph.initializers) known[tensor.name] = tensor.data.size();

  std::vector<int> chosen;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (depends[n] || !node.domain().empty() || has_body(node) || is_quantization(node) || node.is("Constant"))
      continue;
    std::uint64_t inputs = 0;
    bool foldable = true;
    for (const auto& name : node.inputs()) {
      if (name.empty()) continue;
      foldable = foldable && known.contains(name);
      if (foldable) inputs += known.at(name);
    }
    std::uint64_t outputs = 0;
    for (const auto& name : node.outputs()) {
      const auto bytes = name.empty() ? std::uint64_t{0} : static_bytes(types, name);
      foldable = foldable && bytes.has_value() && !index.is_output(name);
      outputs += bytes.value_or(0);
    }
    if (!foldable || (outputs > kAlwaysFold && outputs > kGrowth * inputs)) continue;
    for (const auto& name : node.outputs()) known[name] = static_bytes(types, name).value_or(0);
    chosen.push_back(static_cast<int>(n));
  }
  return chosen;
}

Notes replace_by_constants(onnx::Model& model, const std::vector<int>& nodes, std::vector<onnx::Tensor> results) {
  if (nodes.empty()) return {};
  const std::set<int> gone(nodes.begin(), nodes.end());
  std::vector<onnx::Node> kept;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    if (!gone.contains(static_cast<int>(n))) kept.push_back(std::move(model.graph.nodes[n]));
  }
  model.graph.nodes = std::move(kept);
  for (auto& tensor : results) model.graph.initializers.push_back(std::move(tensor));
  drop_unused_initializers(model);
  return {fmt::format("{} constant nodes were computed and replaced by their results", nodes.size())};
}

}  // namespace detent::graph
