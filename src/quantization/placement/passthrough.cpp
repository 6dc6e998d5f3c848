#include "quantization/placement/passthrough.h"

#include "graph/traits.h"
#include "quantization/placement/selection.h"

namespace detent::quantization {

std::set<std::string> passthrough_types(const onnx::Model& model, const QuantConfig& config) {
  check_op_types(model, config.passthrough_op_types, "--set passthrough-op-types");
  std::set<std::string> types;
  for (const auto& row : graph::all_traits()) {
    if (row.is(graph::Trait::rearranges)) types.emplace(row.type);
  }
  types.insert(config.passthrough_op_types.begin(), config.passthrough_op_types.end());
  return types;
}

std::string statistics_source(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                              const std::set<std::string>& passthrough, const std::string& value) {
  std::string source = value;
  while (true) {
    const int producer = index.producer(source);
    if (producer == graph::kNone) return source;
    const auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
    if (!node.domain().empty() || !passthrough.contains(node.op_type()) || node.inputs().empty()) return source;
    const std::string& input = node.inputs().front();
    const bool is_activation = !input.empty() && index.initializer(input) == graph::kNone &&
                               graph::type_of(model, types, input) == onnx::DataType::float32;
    if (!is_activation) return source;
    source = input;
  }
}

}  // namespace detent::quantization
