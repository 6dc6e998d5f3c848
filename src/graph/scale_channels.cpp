#include <algorithm>
#include <map>

#include "graph/index.h"
#include "graph/rewrite.h"

namespace detent::graph {
namespace {

onnx::Tensor& initializer(onnx::Model& model, const Index& index, const std::string& name) {
  return model.graph.initializers.at(static_cast<std::size_t>(index.initializer(name)));
}

void replace(onnx::Tensor& tensor, const std::vector<float>& values, const Store& store) {
  const auto bytes = std::as_bytes(std::span(values));
  tensor = {tensor.name, tensor.type, tensor.dims, store({bytes.begin(), bytes.end()}), {}, false};
}

std::vector<float> inverses(const std::vector<float>& factors) {
  std::vector<float> result(factors.size());
  std::transform(factors.begin(), factors.end(), result.begin(), [](float f) { return 1.0F / f; });
  return result;
}

// The node whose constants can take the factors in: a LayerNormalization whose result and whose constants nobody else
// reads.
const onnx::Node* absorbing(const onnx::Model& model, const Index& index, const ChannelScaling& scaling) {
  const int producer = index.producer(scaling.value);
  if (producer == kNone || !scaling.last_axis) return nullptr;
  const auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
  const auto& inputs = node.inputs();
  if (!node.is("LayerNormalization") || index.consumers(scaling.value).size() != scaling.readers.size() ||
      index.is_output(scaling.value) || index.is_captured(scaling.value)) {
    return nullptr;
  }
  const auto is_free = [&](const std::string& name) {
    const int i = index.initializer(name);
    if (i == kNone || index.consumers(name).size() != 1) return false;
    const auto& tensor = model.graph.initializers[static_cast<std::size_t>(i)];
    return tensor.type == onnx::DataType::float32 && tensor.dims.size() == 1 &&
           tensor.count() == static_cast<std::int64_t>(scaling.factors.size());
  };
  const bool has_bias = inputs.size() > 2 && !inputs[2].empty();
  return is_free(inputs[1]) && (!has_bias || is_free(inputs[2])) ? &node : nullptr;
}

// [channels], or [channels, 1, …] behind the batch of a convolution's input.
std::vector<std::int64_t> shape_for(const onnx::Model& model, const Index& index, const ChannelScaling& scaling) {
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(scaling.factors.size())};
  if (scaling.last_axis) return shape;
  const int weight = index.initializer(scaling.readers.front().weight);
  const std::size_t axes = model.graph.initializers[static_cast<std::size_t>(weight)].dims.size() - 2;
  shape.insert(shape.end(), axes, 1);
  return shape;
}

}  // namespace

std::vector<float> scaled_along(const onnx::Tensor& weight, std::size_t axis, const std::vector<float>& factors) {
  std::vector<float> values(static_cast<std::size_t>(weight.count()));
  std::size_t inner = 1;
  for (std::size_t d = axis + 1; d < weight.dims.size(); ++d) inner *= static_cast<std::size_t>(weight.dims[d]);
  onnx::for_each_float(weight.data, [&](std::span<const float> piece, std::int64_t first) {
    const auto at = static_cast<std::size_t>(first);
    for (std::size_t i = 0; i < piece.size(); ++i)
      values[at + i] = piece[i] * factors[(at + i) / inner % factors.size()];
  });
  return values;
}

std::vector<std::string> scale_channels(onnx::Model& model, ValueTypes& types,
                                        const std::vector<ChannelScaling>& scalings, const Store& store) {
  std::vector<std::string> scaled;
  Index index(model);
  std::map<int, std::vector<onnx::Node>> before;  // by the node that they come before
  for (const auto& scaling : scalings) {
    const auto shape = shape_for(model, index, scaling);
    for (const auto& reader : scaling.readers) {
      auto& weight = initializer(model, index, reader.weight);
      replace(weight, scaled_along(weight, reader.axis, scaling.factors), store);
    }
    const auto divisors = inverses(scaling.factors);
    if (const auto* node = absorbing(model, index, scaling)) {
      for (std::size_t i = 1; i < node->inputs().size(); ++i) {
        if (node->inputs()[i].empty()) continue;
        auto& constant = initializer(model, index, node->inputs()[i]);
        replace(constant, scaled_along(constant, 0, divisors), store);
      }
      scaled.push_back(scaling.value);
      continue;
    }
    const std::string factor = index.fresh_name(scaling.value + "_equalize_factor");
    const std::string result = index.fresh_name(scaling.value + "_equalized");
    model.graph.initializers.push_back(
        onnx::make_tensor<float>(factor, onnx::DataType::float32, shape, std::span(divisors)));
    scaled.push_back(result);
    int first = scaling.readers.front().node;
    for (const auto& reader : scaling.readers) {
      model.graph.nodes[static_cast<std::size_t>(reader.node)].set_input(0, result);
      first = std::min(first, reader.node);
    }
    before[first].emplace_back("Mul", index.fresh_name(scaling.value + "_Equalize"), std::vector{scaling.value, factor},
                               std::vector{result});
    if (const auto found = types.find(scaling.value); found != types.end())
      types[result] = graph::ValueType(found->second);
  }
  std::vector<onnx::Node> nodes;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    for (auto& node : before[static_cast<int>(n)]) nodes.push_back(std::move(node));
    nodes.push_back(std::move(model.graph.nodes[n]));
  }
  model.graph.nodes = std::move(nodes);
  return scaled;
}

}  // namespace detent::graph
