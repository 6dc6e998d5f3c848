// Element types and shapes of the values of a graph, as inferred by the runtime.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "onnx/model.h"

namespace detent::graph {

struct ValueType {
  onnx::DataType type = onnx::DataType::undefined;  // undefined: not a tensor, or not known
  std::optional<std::vector<onnx::Dim>> shape;      // nullopt: rank not known
};
using ValueTypes = std::unordered_map<std::string, ValueType>;

/// Adds types and shapes of the initializers.
void add_initializers(const onnx::Model& model, ValueTypes& types);

/// Element type of a value: from its initializer, else as inferred; undefined when not known.
onnx::DataType type_of(const onnx::Model& model, const ValueTypes& types, const std::string& value);

/// Dimensions of a value whose shape is static, nullopt when it is not or is not known.
std::optional<std::vector<std::int64_t>> static_shape(const ValueTypes& types, const std::string& value);

/// Bytes of a value whose shape is static, nullopt when it is not or is not known.
std::optional<std::uint64_t> static_bytes(const ValueTypes& types, const std::string& value);

/// Rank of a value, nullopt when not known.
std::optional<std::size_t> rank_of(const ValueTypes& types, const std::string& value);

}  // namespace detent::graph
