#include "run/records/quantize_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/bytes.h"
#include "base/cpu.h"
#include "graph/bodies.h"
#include "graph/traits.h"

namespace detent::run {
namespace {

// Bodies stay as they are.
std::size_t products_in_bodies(const onnx::Model& model, const onnx::Node& node) {
  std::size_t count = 0;
  for (const auto& body : graph::read_bodies(model, node)) {
    for (const auto& inner : body.nodes) {
      if (graph::is_product(inner)) ++count;
      count += products_in_bodies(model, inner);
    }
  }
  return count;
}

}  // namespace

NodeCounts count_nodes(const onnx::Model& model, const quantization::Placement& placement,
                       const std::function<bool(const std::string&)>& has_integers) {
  NodeCounts counts;
  std::unordered_set<std::size_t> fused;
  for (const auto& activation : placement.fused) fused.insert(activation.node);
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (const std::size_t inside = products_in_bodies(model, node); inside > 0) {
      counts.in_float += inside;
      counts.notes.push_back(fmt::format("{}: {} in its bodies left in float, which no share counts", node.label(),
                                         count_with_noun(inside, "product")));
    }
    if (!placement.selected[n]) {
      if (graph::is_product(node)) ++counts.in_float;
      continue;
    }
    const bool any = fused.contains(n) || std::any_of(node.inputs().begin(), node.inputs().end(), has_integers);
    ++(any ? counts.quantized : counts.in_float);
  }
  return counts;
}

NodeCounts count_nodes(const onnx::Model& model, const quantization::Placement& placement) {
  std::unordered_set<std::string> marked;
  for (const auto& mark : placement.marks) marked.insert(mark.value);
  return count_nodes(model, placement, [&](const auto& value) { return marked.contains(value); });
}

void record_assignment(const onnx::Model& model, const quantization::Assignment& assignment, QuantizeResult& result) {
  const auto& placement = assignment.placement;
  auto counts = count_nodes(model, placement, [&](const auto& value) { return assignment.values.contains(value); });
  result.nodes_quantized = counts.quantized;
  result.nodes_in_float = counts.in_float;
  for (auto& note : counts.notes) result.notes.push_back(std::move(note));
  for (const auto& mark : placement.marks) {
    const auto found = assignment.values.find(mark.value);
    if (mark.is_constant || found == assignment.values.end()) continue;
    const auto& [scale, zero_point] = found->second.slices.front();
    const auto& range = found->second.range;
    result.activations[mark.value] = {scale, zero_point, range.min, range.max, found->second.origin};
  }
}

std::vector<std::string> notes_for_this_machine(const QuantConfig& config) {
  const bool symmetric = config.per_channel || config.weight_symmetric.value_or(true);
  const bool in_pairs = config.weight_range == WeightRange::pairs && symmetric;
  if (sums_8_bit_products_exactly() || config.weight_range == WeightRange::reduced || in_pairs) return {};
  if (config.weight_type != QuantType::int8) return {};  // int8 activations are turned into uint8 inside the runtime
  return {
      "this CPU has no VNNI: ONNX Runtime's products with int8 weights saturate on it and lose accuracy; for such CPUs "
      "give --set weight-range pairs"};
}

}  // namespace detent::run
