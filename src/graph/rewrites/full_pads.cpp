#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "graph/index.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

const onnx::Tensor* constant(const onnx::Model& model, const Index& index, const onnx::Node& node, std::size_t input) {
  if (input >= node.inputs().size()) return nullptr;
  const int at = index.initializer(node.inputs()[input]);
  return at == kNone ? nullptr : &model.graph.initializers[static_cast<std::size_t>(at)];
}

// Empty where the axes are none of a value of that rank.
std::vector<std::int64_t> pads_of_all(const std::vector<std::int64_t>& pads, const std::vector<std::int64_t>& axes,
                                      std::size_t rank) {
  std::vector<std::int64_t> all(2 * rank, 0);
  if (pads.size() != 2 * axes.size()) return {};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis = axes[i] < 0 ? axes[i] + static_cast<std::int64_t>(rank) : axes[i];
    if (axis < 0 || axis >= static_cast<std::int64_t>(rank)) return {};
    all[static_cast<std::size_t>(axis)] = pads[i];
    all[static_cast<std::size_t>(axis) + rank] = pads[i + axes.size()];
  }
  return all;
}

}  // namespace

// ONNX Runtime moves a Transpose past a Pad as if its pads were those of all axes.
Notes pad_all_axes(onnx::Model& model, const ValueTypes& types) {
  constexpr std::size_t kAxes = 3;  // input
  Index index(model);
  std::size_t changed = 0;
  std::vector<onnx::Tensor> made;
  for (auto& node : model.graph.nodes) {
    if (!node.is("Pad")) continue;
    const auto* pads = constant(model, index, node, 1);
    const auto* axes = constant(model, index, node, kAxes);
    const auto rank = rank_of(types, node.inputs()[0]);
    if (pads == nullptr || axes == nullptr || !rank) continue;
    const auto all = pads_of_all(onnx::to_int64s(*pads), onnx::to_int64s(*axes), *rank);
    if (all.empty()) continue;
    const auto name = index.fresh_name(pads->name + "_of_all_axes");
    made.push_back(
        onnx::make_tensor<std::int64_t>(name, onnx::DataType::int64, {static_cast<std::int64_t>(all.size())}, all));
    auto inputs = node.inputs();
    inputs.resize(kAxes);
    inputs[1] = name;
    if (inputs.back().empty()) inputs.pop_back();
    node.set_inputs(std::move(inputs));
    ++changed;
  }
  if (changed == 0) return {};
  for (auto& tensor : made) model.graph.initializers.push_back(std::move(tensor));
  drop_unused_initializers(model);
  return {
      fmt::format("{} Pad {} pads for all axes in place of some", changed, changed == 1 ? "node has" : "nodes have")};
}

}  // namespace detent::graph
