#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/additions.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

using onnx::Node;
using Dims = std::vector<std::int64_t>;

constexpr std::size_t kRoi = 1, kScales = 2, kSizes = 3;  // inputs

class Full {
 public:
  Full(onnx::Model& model, const ValueTypes& types) : model_(model), types_(types), added_(model) {}

  std::size_t run() {
    std::size_t changed = 0;
    for (auto& node : model_.graph.nodes) {
      const auto axes = axes_of(node);
      if (axes && (keeps_ratio(node) ? join_others(node, *axes) : complete(node, *axes))) ++changed;
      move_to_nodes(before_);
      nodes_.push_back(std::move(node));
      move_to_nodes(after_);
    }
    model_.graph.nodes = std::move(nodes_);
    added_.move_constants_to(model_);
    return changed;
  }

 private:
  static bool has(const Node& node, std::size_t input) {
    return node.inputs().size() > input && !node.inputs()[input].empty();
  }

  static bool keeps_ratio(const Node& node) {
    const auto* policy = node.attribute("keep_aspect_ratio_policy");
    return has(node, kSizes) && policy != nullptr && policy->as_string() != "stretch";
  }

  std::size_t rank(const Node& node) const { return *rank_of(types_, node.inputs()[0]); }

  std::optional<Dims> axes_of(const Node& node) const {
    const auto* attribute = node.attribute("axes");
    const auto rank = rank_of(types_, node.is("Resize") ? node.inputs()[0] : std::string());
    if (attribute == nullptr || !rank) return std::nullopt;
    auto axes = attribute->as_ints();
    for (auto& axis : axes) {
      if (axis < 0) axis += static_cast<std::int64_t>(*rank);
      if (axis < 0 || axis >= static_cast<std::int64_t>(*rank)) return std::nullopt;
    }
    return axes;
  }

  // The ratio is kept among the axes that are resized, which sizes of all axes cannot tell. No Transpose moves past a
  // Reshape that makes one axis of the others.
  bool join_others(Node& node, const Dims& axes) {
    const auto others = static_cast<std::int64_t>(rank(node) - axes.size());
    Dims last(axes.size());
    std::iota(last.begin(), last.end(), others);
    if (axes != last || others < 2 || has(node, kRoi)) return false;
    Dims joined(rank(node), 0);  // 0: as before
    std::fill_n(joined.begin(), others, 1);
    joined[0] = -1;
    const auto x = node.inputs()[0], y = node.outputs()[0];
    const auto front = added_.node(before_, node, "Shape", {x}, {onnx::Attribute::of_int("end", others)});
    node.set_input(0, added_.node(before_, node, "Reshape",
                                  {x, added_.constant(node.id() + "_joined", onnx::DataType::int64, joined)}));
    node.set_output(0, added_.index().fresh_name(y + "_joined"));
    const auto kept = added_.constant(node.id() + "_kept", onnx::DataType::int64, Dims(axes.size(), 0));
    const auto dims = added_.node(after_, node, "Concat", {front, kept}, {onnx::Attribute::of_int("axis", 0)});
    added_.node(after_, node, "Reshape", {node.outputs()[0], dims});
    after_.back().set_output(0, y);
    return true;
  }

  bool complete(Node& node, const Dims& axes) {
    const std::size_t input = has(node, kSizes) ? kSizes : kScales;
    const auto roi = has(node, kRoi) ? region_of_all(node, axes) : std::string();
    if (!has(node, input) || (has(node, kRoi) && roi.empty())) return false;
    const auto made = input == kSizes ? sizes_of_all(node, axes) : scales_of_all(node, axes);
    if (!roi.empty()) node.set_input(kRoi, roi);
    node.set_input(input, made);
    node.remove_attribute("axes");
    return true;
  }

  // Of the other axes it is the whole.
  std::string region_of_all(const Node& node, const Dims& axes) {
    const auto* region = float32_constant(model_, added_.index(), node, kRoi);
    if (region == nullptr || region->count() != static_cast<std::int64_t>(2 * axes.size())) return {};
    const auto given = floats_of(*region);
    std::vector<float> all(2 * rank(node), 0);
    std::fill(all.begin() + static_cast<std::ptrdiff_t>(rank(node)), all.end(), 1);
    for (std::size_t i = 0; i < axes.size(); ++i) {
      all[static_cast<std::size_t>(axes[i])] = given[i];
      all[rank(node) + static_cast<std::size_t>(axes[i])] = given[axes.size() + i];
    }
    return added_.constant(region->name + "_of_all_axes", onnx::DataType::float32, all);
  }

  std::string scales_of_all(const Node& node, const Dims& axes) {
    std::vector<float> all(rank(node), 1);
    const auto* scales = float32_constant(model_, added_.index(), node, kScales);
    if (scales == nullptr || scales->count() != static_cast<std::int64_t>(axes.size()))
      return put_in(node, added_.constant(node.id() + "_ones", onnx::DataType::float32, all), axes,
                    node.inputs()[kScales]);
    const auto given = floats_of(*scales);
    for (std::size_t i = 0; i < axes.size(); ++i) all[static_cast<std::size_t>(axes[i])] = given[i];
    return added_.constant(scales->name + "_of_all_axes", onnx::DataType::float32, all);
  }

  // What the other axes have comes from the value itself.
  std::string sizes_of_all(const Node& node, const Dims& axes) {
    const auto& sizes = node.inputs()[kSizes];
    const auto shape = static_shape(types_, node.inputs()[0]);
    const int constant = added_.index().initializer(sizes);
    if (!shape || constant == kNone)
      return put_in(node, added_.node(before_, node, "Shape", {node.inputs()[0]}), axes, sizes);
    Dims all(shape->begin(), shape->end());
    const auto given = onnx::to_int64s(model_.graph.initializers[static_cast<std::size_t>(constant)]);
    for (std::size_t i = 0; i < std::min(axes.size(), given.size()); ++i)
      all[static_cast<std::size_t>(axes[i])] = given[i];
    return added_.constant(sizes + "_of_all_axes", onnx::DataType::int64, all);
  }

  std::string put_in(const Node& node, const std::string& all, const Dims& axes, const std::string& some) {
    return added_.node(before_, node, "ScatterElements",
                       {all, added_.constant(node.id() + "_axes", onnx::DataType::int64, axes), some});
  }

  void move_to_nodes(std::vector<Node>& nodes) {
    for (auto& node : nodes) nodes_.push_back(std::move(node));
    nodes.clear();
  }

  onnx::Model& model_;
  const ValueTypes& types_;
  Additions added_;
  std::vector<Node> nodes_, before_, after_;
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
