#include "quantization/placement/infinite_values.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "graph/index.h"

namespace detent::quantization {
namespace {

// Of a type whose exponent has these bits; all are set in infinite values and NaN alone.
template <class Bits>
bool are_finite(const onnx::TensorData& data, Bits exponent) {
  bool finite = true;
  data.write_to([&](std::span<const std::byte> bytes) {
    for (std::size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += sizeof(Bits)) {
      Bits bits = 0;
      std::memcpy(&bits, bytes.data() + at, sizeof bits);
      finite &= (bits & exponent) != exponent;
    }
  });
  return finite;
}

bool passes_infinities(const onnx::Node& node) {
  static constexpr std::array<std::string_view, 19> kTypes{
      "Add",     "Sub",       "Where",  "Cast",   "CastLike", "Expand", "Flatten", "Identity", "Mul",      "Trilu",
      "Reshape", "Transpose", "Concat", "Gather", "Slice",    "Split",  "Squeeze", "Tile",     "Unsqueeze"};
  return node.domain().empty() && std::find(kTypes.begin(), kTypes.end(), node.op_type()) != kTypes.end();
}

// Rows of a table that are looked up are seldom those that hold such values; what is added is added as a whole.
bool adds(const onnx::Node& node, std::size_t input) {
  return node.is("Add") || node.is("Sub") || (node.is("Where") && input > 0);
}

bool fills_with_infinity(const onnx::Model& model, const onnx::Node& node) {
  const auto* value = node.is("ConstantOfShape") ? node.attribute("value") : nullptr;
  return value != nullptr && !all_finite(onnx::read_attribute_tensor(model, node, *value));
}

}  // namespace

bool all_finite(const onnx::Tensor& tensor) {
  switch (tensor.type) {
    case onnx::DataType::float32: return are_finite<std::uint32_t>(tensor.data, 0x7f800000U);
    case onnx::DataType::float16: return are_finite<std::uint16_t>(tensor.data, 0x7c00U);
    case onnx::DataType::bfloat16: return are_finite<std::uint16_t>(tensor.data, 0x7f80U);
    default: return true;
  }
}

std::set<std::string> infinite_values(const onnx::Model& model) {
  const graph::Index index(model);
  std::set<std::string> found, finite;
  const auto is_infinite = [&](const std::string& name) {
    const int at = index.initializer(name);
    if (at == graph::kNone || finite.contains(name)) return false;
    const bool is_finite = all_finite(model.graph.initializers[static_cast<std::size_t>(at)]);
    (is_finite ? finite : found).insert(name);
    return !is_finite;
  };
  for (const auto& node : model.graph.nodes) {
    if (!passes_infinities(node) && !node.is("ConstantOfShape")) continue;
    bool any = fills_with_infinity(model, node);
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      const auto& input = node.inputs()[i];
      any = found.contains(input) || (adds(node, i) && is_infinite(input)) || any;
    }
    if (any) found.insert(node.outputs().begin(), node.outputs().end());
  }
  return found;
}

}  // namespace detent::quantization
