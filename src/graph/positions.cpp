#include "graph/positions.h"

#include <algorithm>

#include "graph/traits.h"

namespace detent::graph {
namespace {

bool is_float(const onnx::Model& model, const ValueTypes& types, const std::string& value) {
  const auto type = type_of(model, types, value);
  // What is not known may be one.
  return type == onnx::DataType::float32 || type == onnx::DataType::float16 || type == onnx::DataType::bfloat16 ||
         type == onnx::DataType::float64 || type == onnx::DataType::undefined;
}

bool measures_shape(const onnx::Node& node) { return node.is("Shape") || node.is("Size"); }

// Factors and borders, but for the values themselves.
bool is_size_of(const onnx::Node& node, const std::string& value) {
  if (!node.is("Resize") && !node.is("Upsample")) return false;
  return node.inputs()[0] != value;
}

std::vector<bool> come_from_products(const onnx::Model& model, const Index& index) {
  std::vector<bool> found(model.graph.nodes.size());
  for (std::size_t n = 0; n < found.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (measures_shape(node)) continue;
    const auto comes = [&](const std::string& value) {
      const int producer = index.producer(value);
      return producer != kNone && found[static_cast<std::size_t>(producer)];
    };
    found[n] =
        is_product(node) || !node.bodies().empty() || std::any_of(node.inputs().begin(), node.inputs().end(), comes);
  }
  return found;
}

}  // namespace

std::vector<bool> makes_positions(const onnx::Model& model, const ValueTypes& types, const Index& index) {
  const auto products = come_from_products(model, index);
  std::vector<bool> found(model.graph.nodes.size());
  for (std::size_t n = found.size(); n-- > 0;) {
    const auto& node = model.graph.nodes[n];
    const bool any_float = std::any_of(node.outputs().begin(), node.outputs().end(),
                                       [&](const auto& o) { return !o.empty() && is_float(model, types, o); });
    if (products[n] || !any_float) continue;
    const auto goes_to_positions = [&](const std::string& value) {
      if (value.empty()) return true;
      const auto readers = index.consumers(value);
      if (readers.empty() || index.is_output(value) || index.is_captured(value)) return false;
      return std::all_of(readers.begin(), readers.end(), [&](int reader) {
        const auto r = static_cast<std::size_t>(reader);
        const auto& next = model.graph.nodes[r];
        if (found[r] || is_size_of(next, value) || measures_shape(next)) return true;
        return next.bodies().empty() && !products[r] &&
               std::none_of(next.outputs().begin(), next.outputs().end(),
                            [&](const auto& o) { return !o.empty() && is_float(model, types, o); });
      });
    };
    found[n] = std::all_of(node.outputs().begin(), node.outputs().end(), goes_to_positions);
  }
  return found;
}

}  // namespace detent::graph
