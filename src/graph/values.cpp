#include "graph/values.h"

#include <algorithm>

namespace detent::graph {

void add_initializers(const onnx::Model& model, ValueTypes& types) {
  for (const auto& tensor : model.graph.initializers) {
    std::vector<onnx::Dim> dims;
    for (const auto d : tensor.dims) dims.push_back({d, ""});
    types[tensor.name] = {tensor.type, std::move(dims)};
  }
}

onnx::DataType type_of(const onnx::Model& model, const ValueTypes& types, const std::string& value) {
  const auto found = types.find(value);
  if (found != types.end()) return found->second.type;
  const auto& initializers = model.graph.initializers;
  const auto tensor =
      std::find_if(initializers.begin(), initializers.end(), [&](const auto& t) { return t.name == value; });
  return tensor == initializers.end() ? onnx::DataType::undefined : tensor->type;
}

std::optional<std::vector<std::int64_t>> static_shape(const ValueTypes& types, const std::string& value) {
  const auto found = types.find(value);
  if (found == types.end() || !found->second.shape) return std::nullopt;
  std::vector<std::int64_t> shape;
  for (const auto& dim : *found->second.shape) {
    if (!dim.is_static()) return std::nullopt;
    shape.push_back(dim.value);
  }
  return shape;
}

std::optional<std::uint64_t> static_bytes(const ValueTypes& types, const std::string& value) {
  const auto shape = static_shape(types, value);
  if (!shape || onnx::bits_of(types.at(value).type) == 0) return std::nullopt;
  const auto count = onnx::element_count(*shape);
  return count ? onnx::byte_count(types.at(value).type, *count) : std::nullopt;
}

std::optional<std::size_t> rank_of(const ValueTypes& types, const std::string& value) {
  const auto found = types.find(value);
  if (found == types.end() || !found->second.shape) return std::nullopt;
  return found->second.shape->size();
}

}  // namespace detent::graph
