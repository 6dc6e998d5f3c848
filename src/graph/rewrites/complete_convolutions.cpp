#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"

namespace detent::graph {
namespace {

void give(onnx::Node& node, std::string_view name, const std::vector<std::int64_t>& values) {
  if (node.attribute(name) == nullptr) node.set_attribute(onnx::Attribute::of_ints(name, values));
}

}  // namespace

void complete_convolutions(onnx::Model& model) {
  const Index index(model);
  for (auto& node : model.graph.nodes) {
    const bool pools = node.is("MaxPool") || node.is("AveragePool");
    if (!pools && !has_trait(node, Trait::convolution)) continue;
    if (!pools && node.attribute("kernel_shape") == nullptr) {
      const int weight = node.inputs().size() > kWeightInput ? index.initializer(node.inputs()[kWeightInput]) : kNone;
      if (weight == kNone) continue;
      const auto& dims = model.graph.initializers[static_cast<std::size_t>(weight)].dims;
      if (dims.size() < 3) continue;
      give(node, "kernel_shape", {dims.begin() + 2, dims.end()});
    }
    const auto* kernel = node.attribute("kernel_shape");
    if (kernel == nullptr) continue;
    const std::size_t rank = kernel->as_ints().size();
    give(node, "strides", std::vector<std::int64_t>(rank, 1));
    const auto* automatic = node.attribute("auto_pad");
    if (automatic == nullptr || automatic->as_string() == "NOTSET")
      give(node, "pads", std::vector<std::int64_t>(2 * rank, 0));
    if (!node.is("AveragePool")) give(node, "dilations", std::vector<std::int64_t>(rank, 1));
    if (!pools && node.attribute("group") == nullptr) node.set_attribute(onnx::Attribute::of_int("group", 1));
  }
}

}  // namespace detent::graph
