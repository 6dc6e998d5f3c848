#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/write.h"

namespace detent::graph {

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

}  // namespace detent::graph
