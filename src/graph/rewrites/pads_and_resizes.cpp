// What a rewrite adds beside the nodes that it changes.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "onnx/model.h"
#include "onnx/write.h"

namespace detent::graph {

/// Constants and nodes with names of their own. The model must outlive it; what it has at the beginning is what index()
/// knows.
class Additions {
 public:
  explicit Additions(const onnx::Model& model) : index_(model) {}

  Index& index() noexcept { return index_; }
  const Index& index() const noexcept { return index_; }

  /// A list of numbers, by its name.
  template <class T>
  std::string constant(const std::string& name, onnx::DataType type, const std::vector<T>& values) {
    constants_.push_back(
        onnx::make_tensor<T>(index_.fresh_name(name), type, {static_cast<std::int64_t>(values.size())}, values));
    return constants_.back().name;
  }

  /// A node of the same body as `beside`, at the end of `to`, by its result.
  std::string node(std::vector<onnx::Node>& to, const onnx::Node& beside, const std::string& type,
                   std::vector<std::string> inputs, std::vector<onnx::Attribute> attributes = {}) {
    const auto name = index_.fresh_name(beside.id() + "_" + type);
    to.emplace_back(type, name, std::move(inputs), std::vector{index_.fresh_name(name + "_result")},
                    std::move(attributes));
    to.back().set_body(beside.body());
    return to.back().outputs()[0];
  }

  void move_constants_to(onnx::Model& model) {
    for (auto& tensor : constants_) model.graph.initializers.push_back(std::move(tensor));
    constants_.clear();
  }

 private:
  Index index_;
  std::vector<onnx::Tensor> constants_;
};

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

class FullPads {
 public:
  FullPads(onnx::Model& model, const ValueTypes& types) : model_(model), types_(types), added_(model) {}

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
  const std::size_t changed = FullPads(model, types).run();
  if (changed == 0) return {};
  drop_unused_initializers(model);
  return {
      fmt::format("{} Pad {} pads for all axes in place of some", changed, changed == 1 ? "node has" : "nodes have")};
}

namespace {

using onnx::Node;

constexpr std::size_t kRoi = 1, kScales = 2, kSizes = 3;  // inputs

class FullResizes {
 public:
  FullResizes(onnx::Model& model, const ValueTypes& types) : model_(model), types_(types), added_(model) {}

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
  const std::size_t changed = FullResizes(model, types).run();
  if (changed == 0) return {};
  drop_unused_initializers(model);
  return {fmt::format("{} Resize {} told the sizes of all axes in place of some", changed,
                      changed == 1 ? "node is" : "nodes are")};
}

// ONNX Runtime's kernel for integers divides sums at the border by another count than its kernel for floats does.
Notes pad_before_means(onnx::Model& model) {
  constexpr std::int64_t kPadsAsInput = 11;  // opset
  if (model.opset() < kPadsAsInput) return {};
  Index index(model);
  std::vector<onnx::Node> nodes;
  std::size_t changed = 0;
  for (auto& node : model.graph.nodes) {
    const auto* automatic = node.attribute("auto_pad");
    const bool explicit_pads = automatic == nullptr || automatic->as_string() == "NOTSET";
    if (node.is("AveragePool") && explicit_pads && node.int_or("ceil_mode", 0) != 0 &&
        node.int_or("count_include_pad", 0) != 0) {
      const auto* given = node.attribute("pads");
      const auto pads = given == nullptr ? std::vector<std::int64_t>() : given->as_ints();
      if (std::any_of(pads.begin(), pads.end(), [](auto p) { return p != 0; })) {
        const std::size_t axes = pads.size() / 2;
        std::vector<std::int64_t> all(2 * (axes + 2), 0);  // batch and channels have none
        std::copy_n(pads.begin(), axes, all.begin() + 2);
        std::copy_n(pads.begin() + static_cast<std::ptrdiff_t>(axes), axes,
                    all.begin() + static_cast<std::ptrdiff_t>(axes + 4));
        const std::string& input = node.inputs()[0];
        const auto name = index.fresh_name(input + "_pads"), padded = index.fresh_name(input + "_padded");
        model.graph.initializers.push_back(
            onnx::make_tensor<std::int64_t>(name, onnx::DataType::int64, {static_cast<std::int64_t>(all.size())}, all));
        nodes.emplace_back("Pad", padded, std::vector{input, name}, std::vector{padded});
        nodes.back().set_body(node.body());
        node.set_input(0, padded);
        node.set_attribute(onnx::Attribute::of_ints("pads", std::vector<std::int64_t>(pads.size(), 0)));
      }
      node.set_attribute(onnx::Attribute::of_int("count_include_pad", 0));
      ++changed;
    }
    nodes.push_back(std::move(node));
  }
  model.graph.nodes = std::move(nodes);
  if (changed == 0) return {};
  return {fmt::format("with the zeros around their values: {}", count_with_noun(changed, "AveragePool node"))};
}

namespace {

// The strides of a convolution that reads each of its values at one place, without a border; empty: it is none.
std::vector<std::int64_t> strides_of_point(const onnx::Model& model, const Index& index, const onnx::Node& node) {
  if (!node.is("Conv") || node.inputs().size() <= kWeightInput || node.attribute("strides") == nullptr) return {};
  const int weight = index.initializer(node.inputs()[kWeightInput]);
  if (weight == kNone) return {};
  const auto& dims = model.graph.initializers[static_cast<std::size_t>(weight)].dims;
  const auto strides = node.attribute("strides")->as_ints();
  const auto is_one = [](std::int64_t n) { return n == 1; };
  if (dims.size() != strides.size() + 2 || !std::all_of(dims.begin() + 2, dims.end(), is_one)) return {};
  if (std::all_of(strides.begin(), strides.end(), is_one)) return {};
  if (const auto* pads = node.attribute("pads")) {
    const auto values = pads->as_ints();
    if (std::any_of(values.begin(), values.end(), [](auto p) { return p != 0; })) return {};
  }
  const auto* automatic = node.attribute("auto_pad");
  if (automatic != nullptr && automatic->as_string() != "NOTSET" && automatic->as_string() != "VALID") return {};
  return strides;
}

}  // namespace

Notes pool_before_strided_points(onnx::Model& model) {
  Index index(model);
  std::map<std::pair<std::string, std::vector<std::int64_t>>, std::string> pooled;  // of a value, by strides
  std::vector<onnx::Node> nodes;
  std::size_t changed = 0;
  for (auto& node : model.graph.nodes) {
    if (const auto strides = strides_of_point(model, index, node); !strides.empty()) {
      const auto& input = node.inputs()[0];
      auto [found, added] = pooled.try_emplace({input, strides});
      if (added) {
        found->second = index.fresh_name(input + "_pooled");
        const std::vector<std::int64_t> ones(strides.size(), 1);
        nodes.emplace_back(
            "MaxPool", found->second, std::vector{input}, std::vector{found->second},
            std::vector{onnx::Attribute::of_ints("kernel_shape", ones), onnx::Attribute::of_ints("strides", strides)});
        nodes.back().set_body(node.body());
      }
      node.set_input(0, found->second);
      node.set_attribute(onnx::Attribute::of_ints("strides", std::vector<std::int64_t>(strides.size(), 1)));
      ++changed;
    }
    nodes.push_back(std::move(node));
  }
  model.graph.nodes = std::move(nodes);
  if (changed == 0) return {};
  return {fmt::format("{} 1x1 convolutions with strides take their values from a pool with these strides", changed)};
}

}  // namespace detent::graph
