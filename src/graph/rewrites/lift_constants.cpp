#include <fmt/format.h>

#include <optional>

#include "base/bytes.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

// The tensor that a Constant node stands for; nullopt for forms without a dense tensor (sparse values, strings).
std::optional<onnx::Tensor> constant_value(const onnx::Model& model, const onnx::Node& node) {
  using onnx::DataType;
  const std::string& name = node.outputs().front();
  if (const auto* a = node.attribute("value")) {
    auto tensor = read_attribute_tensor(model, node, *a);
    if (tensor.type == DataType::string || onnx::bits_of(tensor.type) == 0) return std::nullopt;
    tensor.name = name;
    tensor.raw = {};  // the message carries another name
    return tensor;
  }
  if (const auto* a = node.attribute("value_float")) {
    const float value = a->as_float();
    return onnx::make_tensor<float>(name, DataType::float32, {}, {&value, 1});
  }
  if (const auto* a = node.attribute("value_int")) {
    const std::int64_t value = a->as_int();
    return onnx::make_tensor<std::int64_t>(name, DataType::int64, {}, {&value, 1});
  }
  if (const auto* a = node.attribute("value_floats")) {
    const auto values = a->as_floats();
    return onnx::make_tensor<float>(name, DataType::float32, {static_cast<std::int64_t>(values.size())}, values);
  }
  if (const auto* a = node.attribute("value_ints")) {
    const auto values = a->as_ints();
    return onnx::make_tensor<std::int64_t>(name, DataType::int64, {static_cast<std::int64_t>(values.size())}, values);
  }
  return std::nullopt;
}

}  // namespace

Notes lift_constants(onnx::Model& model) {
  const Index index(model);
  std::vector<onnx::Node> kept;
  kept.reserve(model.graph.nodes.size());
  for (auto& node : model.graph.nodes) {
    const bool candidate =
        node.is("Constant") && node.outputs().size() == 1 && !index.is_output(node.outputs().front());
    auto tensor = candidate ? constant_value(model, node) : std::nullopt;
    if (tensor) {
      model.graph.initializers.push_back(std::move(*tensor));
    } else {
      kept.push_back(std::move(node));
    }
  }
  const std::size_t lifted = model.graph.nodes.size() - kept.size();
  model.graph.nodes = std::move(kept);
  if (lifted == 0) return {};
  return {fmt::format("made initializers: {}", count_with_noun(lifted, "Constant node"))};
}

Notes drop_initializer_inputs(onnx::Model& model) {
  const Index index(model);
  auto& inputs = model.graph.inputs;
  const auto dropped = std::erase_if(inputs, [&](const auto& input) { return index.initializer(input.name) != kNone; });
  if (dropped == 0) return {};
  // Before IR version 4 an initializer had to be an input; without the listing the file must say at least 4.
  if (model.ir_version < 4) model.set_ir_version(4);
  return {"constants now, and no graph inputs any more: " + count_with_noun(dropped, "initializer")};
}

void drop_unused_initializers(onnx::Model& model) {
  const Index index(model);
  std::vector<onnx::Tensor> kept;
  for (auto& tensor : model.graph.initializers) {
    if (!index.consumers(tensor.name).empty() || index.is_output(tensor.name) || index.is_input(tensor.name)) {
      kept.push_back(std::move(tensor));
    }
  }
  model.graph.initializers = std::move(kept);
}

}  // namespace detent::graph
