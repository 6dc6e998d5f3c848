#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"

namespace detent::graph {
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
