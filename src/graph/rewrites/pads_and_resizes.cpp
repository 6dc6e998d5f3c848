// ONNX Runtime moves a Transpose past a Pad or a Resize as if what these read were of all axes.
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

namespace {

using onnx::Node;
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

class FullPads : Rewriter {
 public:
  using Rewriter::Rewriter;

  Notes run() {
    std::size_t changed = 0;
    rebuild([&](onnx::Node& node) {
      if (node.is("Pad") && complete(node)) ++changed;
      return false;
    });
    return finish(changed, fmt::format("{} Pad {} pads for all axes in place of some", changed,
                                       changed == 1 ? "node has" : "nodes have"));
  }

 private:
  bool complete(onnx::Node& node) {
    constexpr std::size_t kPads = 1, kAxes = 3;  // inputs
    const auto* axes = constant(node, kAxes);
    const auto rank = rank_of(types_, node.inputs()[0]);
    if (axes == nullptr || !rank) return false;
    const auto places = places_of(onnx::to_int64s(*axes), *rank);
    Dims all(2 * *rank, 0);
    auto inputs = node.inputs();
    if (const auto* pads = constant(node, kPads)) {
      const auto given = onnx::to_int64s(*pads);
      if (given.size() != places.size()) return false;
      for (std::size_t i = 0; i < places.size(); ++i) all[static_cast<std::size_t>(places[i])] = given[i];
      inputs[kPads] = add_ints(pads->name + "_of_all_axes", all);
    } else {
      if (places.empty()) return false;
      const auto zeros = add_ints(node.id() + "_no_pads", all), where = add_ints(node.id() + "_places", places);
      inputs[kPads] = put(node, "ScatterElements", {zeros, where, inputs[kPads]});
    }
    inputs.resize(kAxes);
    if (inputs.back().empty()) inputs.pop_back();
    node.set_inputs(std::move(inputs));
    return true;
  }
};

constexpr std::size_t kRoi = 1, kScales = 2, kSizes = 3;  // inputs

class FullResizes : Rewriter {
 public:
  using Rewriter::Rewriter;

  Notes run() {
    std::size_t changed = 0;
    rebuild([&](Node& node) {
      const auto axes = axes_of(node);
      if (!axes) return false;
      const bool joins = keeps_ratio(node);
      if (!(joins ? join_others(node, *axes) : complete(node, *axes))) return false;
      ++changed;
      return joins;
    });
    return finish(changed, fmt::format("{} Resize {} told the sizes of all axes in place of some", changed,
                                       changed == 1 ? "node is" : "nodes are"));
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
    const auto front = put(node, "Shape", {x}, {onnx::Attribute::of_int("end", others)});
    node.set_input(0, put(node, "Reshape", {x, add_ints(node.id() + "_joined", joined)}));
    node.set_output(0, fresh(y + "_joined"));
    const auto kept = add_ints(node.id() + "_kept", Dims(axes.size(), 0));
    nodes_.push_back(node);
    const auto dims = put(node, "Concat", {front, kept}, {onnx::Attribute::of_int("axis", 0)});
    put(node, "Reshape", {node.outputs()[0], dims});
    nodes_.back().set_output(0, y);
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
    const auto* region = floats(node, kRoi);
    if (region == nullptr || region->count() != static_cast<std::int64_t>(2 * axes.size())) return {};
    const auto given = floats_of(*region);
    std::vector<float> all(2 * rank(node), 0);
    std::fill(all.begin() + static_cast<std::ptrdiff_t>(rank(node)), all.end(), 1);
    for (std::size_t i = 0; i < axes.size(); ++i) {
      all[static_cast<std::size_t>(axes[i])] = given[i];
      all[rank(node) + static_cast<std::size_t>(axes[i])] = given[axes.size() + i];
    }
    return add_numbers(region->name + "_of_all_axes", all);
  }

  std::string scales_of_all(const Node& node, const Dims& axes) {
    std::vector<float> all(rank(node), 1);
    const auto* scales = floats(node, kScales);
    if (scales == nullptr || scales->count() != static_cast<std::int64_t>(axes.size()))
      return put_in(node, add_numbers(node.id() + "_ones", all), axes, node.inputs()[kScales]);
    const auto given = floats_of(*scales);
    for (std::size_t i = 0; i < axes.size(); ++i) all[static_cast<std::size_t>(axes[i])] = given[i];
    return add_numbers(scales->name + "_of_all_axes", all);
  }

  // What the other axes have comes from the value itself.
  std::string sizes_of_all(const Node& node, const Dims& axes) {
    const auto& sizes = node.inputs()[kSizes];
    const auto shape = static_shape(types_, node.inputs()[0]);
    const auto* known = constant(sizes);
    if (!shape || known == nullptr) return put_in(node, put(node, "Shape", {node.inputs()[0]}), axes, sizes);
    Dims all(shape->begin(), shape->end());
    const auto given = onnx::to_int64s(*known);
    for (std::size_t i = 0; i < std::min(axes.size(), given.size()); ++i)
      all[static_cast<std::size_t>(axes[i])] = given[i];
    return add_ints(sizes + "_of_all_axes", all);
  }

  std::string put_in(const Node& node, const std::string& all, const Dims& axes, const std::string& some) {
    return put(node, "ScatterElements", {all, add_ints(node.id() + "_axes", axes), some});
  }

  std::string add_numbers(const std::string& name, const std::vector<float>& values) {
    return add(name, {static_cast<std::int64_t>(values.size())}, values);
  }
};

bool has_other_than(const onnx::Attribute* list, std::int64_t number) {
  if (list == nullptr) return false;
  const auto all = list->as_ints();
  return std::any_of(all.begin(), all.end(), [&](auto n) { return n != number; });
}

class PoolRewriter : Rewriter {
 public:
  using Rewriter::Rewriter;

  // ONNX Runtime's kernel for integers divides sums at the border by another count than its kernel for floats does.
  Notes pad_before_means() {
    std::size_t changed = 0;
    rebuild([&](Node& node) {
      const auto* automatic = node.attribute("auto_pad");
      const bool explicit_pads = automatic == nullptr || automatic->as_string() == "NOTSET";
      if (!node.is("AveragePool") || !explicit_pads || node.int_or("ceil_mode", 0) == 0 ||
          node.int_or("count_include_pad", 0) == 0)
        return false;
      if (has_other_than(node.attribute("pads"), 0)) put_zeros_around(node);
      node.set_attribute(onnx::Attribute::of_int("count_include_pad", 0));
      ++changed;
      return false;
    });
    return finish(changed, "with the zeros around their values: " + count_with_noun(changed, "AveragePool node"));
  }

  Notes pool_before_strided_points() {
    std::map<std::pair<std::string, Dims>, std::string> pooled;  // of a value, by strides
    std::size_t changed = 0;
    rebuild([&](Node& node) {
      const auto strides = strides_of_point(node);
      if (strides.empty()) return false;
      const Dims ones(strides.size(), 1);
      const auto input = node.inputs()[0];
      auto [found, added] = pooled.try_emplace({input, strides});
      if (added) {
        found->second = fresh(input + "_pooled");
        add(node, "MaxPool", found->second, {input}, found->second,
            {onnx::Attribute::of_ints("kernel_shape", ones), onnx::Attribute::of_ints("strides", strides)});
      }
      node.set_input(0, found->second);
      node.set_attribute(onnx::Attribute::of_ints("strides", ones));
      ++changed;
      return false;
    });
    return finish(
        changed,
        fmt::format("{} 1x1 convolutions with strides take their values from a pool with these strides", changed));
  }

 private:
  void put_zeros_around(Node& node) {
    const auto pads = node.attribute("pads")->as_ints();
    const std::size_t axes = pads.size() / 2;
    Dims all(2 * (axes + 2), 0);  // batch and channels have none
    std::copy_n(pads.begin(), axes, all.begin() + 2);
    std::copy_n(pads.begin() + static_cast<std::ptrdiff_t>(axes), axes,
                all.begin() + static_cast<std::ptrdiff_t>(axes + 4));
    const auto input = node.inputs()[0];
    const auto name = add_ints(input + "_pads", all), padded = fresh(input + "_padded");
    node.set_input(0, add(node, "Pad", padded, {input, name}, padded));
    node.set_attribute(onnx::Attribute::of_ints("pads", Dims(pads.size(), 0)));
  }

  // The strides of a convolution that reads each of its values at one place, without a border; empty: it is none.
  Dims strides_of_point(const Node& node) const {
    const auto* weight = node.is("Conv") ? constant(node, kWeightInput) : nullptr;
    const auto* strides = node.attribute("strides");
    if (weight == nullptr || !has_other_than(strides, 1) || has_other_than(node.attribute("pads"), 0)) return {};
    const auto* automatic = node.attribute("auto_pad");
    if (automatic != nullptr && automatic->as_string() != "NOTSET" && automatic->as_string() != "VALID") return {};
    const auto& dims = weight->dims;
    const bool is_point = dims.size() == strides->as_ints().size() + 2 &&
                          std::all_of(dims.begin() + 2, dims.end(), [](auto n) { return n == 1; });
    return is_point ? strides->as_ints() : Dims();
  }
};

}  // namespace

Notes pad_all_axes(onnx::Model& model, const ValueTypes& types) { return FullPads(model, types).run(); }
Notes resize_all_axes(onnx::Model& model, const ValueTypes& types) { return FullResizes(model, types).run(); }
Notes pool_before_strided_points(onnx::Model& model) { return PoolRewriter(model).pool_before_strided_points(); }

Notes pad_before_means(onnx::Model& model) {
  constexpr std::int64_t kPadsAsInput = 11;  // opset
  return model.opset() < kPadsAsInput ? Notes() : PoolRewriter(model).pad_before_means();
}

}  // namespace detent::graph
