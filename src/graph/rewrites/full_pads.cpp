#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "graph/index.h"
#include "graph/rewrites/additions.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

const onnx::Tensor* constant(const onnx::Model& model, const Index& index, const onnx::Node& node, std::size_t input) {
  if (input >= node.inputs().size()) return nullptr;
  const int at = index.initializer(node.inputs()[input]);
  return at == kNone ? nullptr : &model.graph.initializers[static_cast<std::size_t>(at)];
}

using Dims = std::vector<std::int64_t>;

// Where the pads of these axes stand among those of all; empty where the axes are none of a value of that rank.
Dims places_of(const Dims& axes, std::size_t rank) {
  const auto all = static_cast<std::int64_t>(rank);
  Dims places(2 * axes.size());
  for (std::size_t i = 0; i < axes.size(); ++i) {
    places[i] = axes[i] < 0 ? axes[i] + all : axes[i];
    places[i + axes.size()] = places[i] + all;
    if (places[i] < 0 || places[i] >= all) return {};
  }
  return places;
}

class Full {
 public:
  Full(onnx::Model& model, const ValueTypes& types) : model_(model), types_(types), added_(model) {}

  std::size_t run() {
    std::size_t changed = 0;
    for (auto& node : model_.graph.nodes) {
      if (node.is("Pad") && complete(node)) ++changed;
      nodes_.push_back(std::move(node));
    }
    model_.graph.nodes = std::move(nodes_);
    added_.move_constants_to(model_);
    return changed;
  }

 private:
  bool complete(onnx::Node& node) {
    constexpr std::size_t kPads = 1, kAxes = 3;  // inputs
    const auto* axes = constant(model_, added_.index(), node, kAxes);
    const auto rank = rank_of(types_, node.inputs()[0]);
    if (axes == nullptr || !rank) return false;
    const auto places = places_of(onnx::to_int64s(*axes), *rank);
    Dims all(2 * *rank, 0);
    auto inputs = node.inputs();
    if (const auto* pads = constant(model_, added_.index(), node, kPads)) {
      const auto given = onnx::to_int64s(*pads);
      if (given.size() != places.size()) return false;
      for (std::size_t i = 0; i < places.size(); ++i) all[static_cast<std::size_t>(places[i])] = given[i];
      inputs[kPads] = add(pads->name + "_of_all_axes", all);
    } else {
      if (places.empty()) return false;
      const auto zeros = add(node.id() + "_no_pads", all), where = add(node.id() + "_places", places);
      inputs[kPads] = added_.node(nodes_, node, "ScatterElements", {zeros, where, inputs[kPads]});
    }
    inputs.resize(kAxes);
    if (inputs.back().empty()) inputs.pop_back();
    node.set_inputs(std::move(inputs));
    return true;
  }

  std::string add(const std::string& name, const Dims& values) {
    return added_.constant(name, onnx::DataType::int64, values);
  }

  onnx::Model& model_;
  const ValueTypes& types_;
  Additions added_;
  std::vector<onnx::Node> nodes_;
};

}  // namespace

// ONNX Runtime moves a Transpose past a Pad as if its pads were those of all axes.
Notes pad_all_axes(onnx::Model& model, const ValueTypes& types) {
  const std::size_t changed = Full(model, types).run();
  if (changed == 0) return {};
  drop_unused_initializers(model);
  return {
      fmt::format("{} Pad {} pads for all axes in place of some", changed, changed == 1 ? "node has" : "nodes have")};
}

}  // namespace detent::graph
