#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

using onnx::Node;
using Dims = std::vector<std::int64_t>;

constexpr std::size_t kRoi = 1, kScales = 2, kSizes = 3;  // inputs

class Full {
 public:
  Full(onnx::Model& model, const ValueTypes& types) : model_(model), types_(types), index_(model) {}

  std::size_t run() {
    std::size_t changed = 0;
    std::vector<Node> nodes;
    for (auto& node : model_.graph.nodes) {
      if (const auto axes = axes_of(node); axes && complete(node, *axes, nodes)) ++changed;
      nodes.push_back(std::move(node));
    }
    model_.graph.nodes = std::move(nodes);
    for (auto& tensor : made_) model_.graph.initializers.push_back(std::move(tensor));
    return changed;
  }

 private:
  static bool has(const Node& node, std::size_t input) {
    return node.inputs().size() > input && !node.inputs()[input].empty();
  }

  // Where all that it is told of these axes can be told of all.
  std::optional<Dims> axes_of(const Node& node) const {
    const auto* attribute = node.attribute("axes");
    const auto rank = rank_of(types_, node.is("Resize") ? node.inputs()[0] : std::string());
    if (attribute == nullptr || !rank || has(node, kRoi) || node.body() != 0) return std::nullopt;
    const auto* policy = node.attribute("keep_aspect_ratio_policy");
    if (has(node, kSizes) && policy != nullptr && policy->as_string() != "stretch") return std::nullopt;
    auto axes = attribute->as_ints();
    for (auto& axis : axes) {
      if (axis < 0) axis += static_cast<std::int64_t>(*rank);
      if (axis < 0 || axis >= static_cast<std::int64_t>(*rank)) return std::nullopt;
    }
    return axes;
  }

  bool complete(Node& node, const Dims& axes, std::vector<Node>& before) {
    const bool by_sizes = has(node, kSizes);
    const auto made = by_sizes ? sizes_of_all(node, axes, before) : scales_of_all(node, axes);
    if (made.empty()) return false;
    node.set_input(by_sizes ? kSizes : kScales, made);
    node.remove_attribute("axes");
    return true;
  }

  std::string scales_of_all(const Node& node, const Dims& axes) {
    const auto* scales = has(node, kScales) ? float32_constant(model_, index_, node, kScales) : nullptr;
    if (scales == nullptr || scales->count() != static_cast<std::int64_t>(axes.size())) return {};
    const auto given = floats_of(*scales);
    std::vector<float> all(*rank_of(types_, node.inputs()[0]), 1);
    for (std::size_t i = 0; i < axes.size(); ++i) all[static_cast<std::size_t>(axes[i])] = given[i];
    return add(scales->name, onnx::DataType::float32, all);
  }

  // What the other axes have comes from the value itself: these stand before those that are resized.
  std::string sizes_of_all(const Node& node, const Dims& axes, std::vector<Node>& before) {
    const auto& sizes = node.inputs()[kSizes];
    const auto first = static_cast<std::int64_t>(*rank_of(types_, node.inputs()[0]) - axes.size());
    Dims last(axes.size());
    std::iota(last.begin(), last.end(), first);
    if (axes != last) return {};
    const auto shape = static_shape(types_, node.inputs()[0]);
    const int constant = index_.initializer(sizes);
    if (shape && constant != kNone) {
      Dims all(shape->begin(), shape->begin() + first);
      const auto given = onnx::to_int64s(model_.graph.initializers[static_cast<std::size_t>(constant)]);
      all.insert(all.end(), given.begin(), given.end());
      return add(sizes, onnx::DataType::int64, all);
    }
    auto front = index_.fresh_name(node.id() + "_others"), all = index_.fresh_name(node.id() + "_sizes");
    before.emplace_back("Shape", index_.fresh_name(node.id() + "_Shape"), std::vector{node.inputs()[0]},
                        std::vector{front}, std::vector{onnx::Attribute::of_int("end", first)}, "");
    before.emplace_back("Concat", index_.fresh_name(node.id() + "_Concat"), std::vector{front, sizes}, std::vector{all},
                        std::vector{onnx::Attribute::of_int("axis", 0)}, "");
    return all;
  }

  template <class T>
  std::string add(const std::string& name, onnx::DataType type, const std::vector<T>& values) {
    made_.push_back(onnx::make_tensor<T>(index_.fresh_name(name + "_of_all_axes"), type,
                                         {static_cast<std::int64_t>(values.size())}, values));
    return made_.back().name;
  }

  onnx::Model& model_;
  const ValueTypes& types_;
  Index index_;
  std::vector<onnx::Tensor> made_;
};

}  // namespace

// ONNX Runtime moves a Transpose past a Resize as if its sizes were those of all axes.
Notes resize_all_axes(onnx::Model& model, const ValueTypes& types) {
  const std::size_t changed = Full(model, types).run();
  if (changed == 0) return {};
  drop_unused_initializers(model);
  return {fmt::format("{} Resize {} told the sizes of all axes in place of some", changed,
                      changed == 1 ? "node is" : "nodes are")};
}

}  // namespace detent::graph
