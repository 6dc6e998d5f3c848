#include "quantization/emit/read_values.h"
#include "graph/traits.h"

namespace detent::quantization {
namespace {

// A Max of one value hands it on as it is (barriers.h).
const std::string& behind_barrier(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int producer = index.producer(value);
  if (producer == graph::kNone) return value;
  const auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
  return node.is("Max") && node.inputs().size() == 1 ? node.inputs()[0] : value;
}

}  // namespace

std::unordered_map<std::string, std::string> dequantized_values(const onnx::Model& quantized,
                                                                const graph::Index& index) {
  std::unordered_map<std::string, std::string> found;
  for (const auto& node : quantized.graph.nodes) {
    if (!graph::is_dequantize_linear(node)) continue;
    const int producer = index.producer(node.inputs()[0]);
    if (producer == graph::kNone) continue;
    const auto& quantize = quantized.graph.nodes[static_cast<std::size_t>(producer)];
    if (!graph::is_quantize_linear(quantize)) continue;
    found.try_emplace(behind_barrier(quantized, index, quantize.inputs()[0]), node.outputs()[0]);
  }
  return found;
}

}  // namespace detent::quantization
