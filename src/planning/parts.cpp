#include "planning/parts.h"

#include <algorithm>

#include "graph/traits.h"
#include "planning/as_executed.h"

namespace detent::planning {

std::uint64_t spool_buffers(std::uint64_t bytes_of_sample) { return std::min(kMostBuffers, 3 * bytes_of_sample); }

std::uint64_t resident_bytes(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                             const onnx::Tensor& weight) {
  constexpr std::uint64_t kGatheredRow = 64 * kKiB;  // pages that reading one row of a table makes resident
  const auto readers = index.consumers(weight.name);
  const bool is_table = !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](int reader) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
    return graph::has_trait(node, graph::Trait::looks_up) && node.inputs().front() == weight.name;
  });
  if (!is_table) return weight.data.size();
  std::uint64_t bytes = 0;
  for (const int reader : readers) {
    const auto& indices = model.graph.nodes[static_cast<std::size_t>(reader)].inputs().at(1);
    const std::uint64_t rows = graph::static_bytes(types, indices).value_or(0) / sizeof(std::int64_t);
    bytes += std::min<std::uint64_t>(rows * kGatheredRow, weight.data.size());
  }
  return bytes;
}

std::uint64_t convolution_weights(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  if (!node.is("Conv") || node.inputs().size() < 2) return 0;
  const int weight = index.initializer(node.inputs()[1]);
  return weight == graph::kNone ? 0 : model.graph.initializers[static_cast<std::size_t>(weight)].data.size();
}

std::uint64_t convolution_weights(const onnx::Model& model) {
  const graph::Index index(model);
  std::uint64_t bytes = 0;
  for (const auto& node : model.graph.nodes) bytes += convolution_weights(model, index, node);
  return bytes;
}

std::uint64_t copied_weights(const onnx::Model& model) { return channel_block() > 0 ? convolution_weights(model) : 0; }

graph::Workspace workspace_of(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                              bool blocked) {
  return [&model, &index, &types, blocked](const onnx::Node& node, bool kept) -> std::uint64_t {
    if (node.inputs().size() < 2) return 0;
    const std::uint64_t input = graph::static_bytes(types, node.inputs()[0]).value_or(0);
    if (node.is("Conv")) return blocked && kept ? input : 0;
    const int weight = index.initializer(node.inputs()[1]);
    if (!node.is("ConvTranspose") || weight == graph::kNone) return 0;
    const auto& tensor = model.graph.initializers[static_cast<std::size_t>(weight)];
    const auto channels = static_cast<std::uint64_t>(std::max<std::int64_t>(tensor.dims.front(), 1));
    // Pixels of one channel, times the weights of one input channel.
    return input / channels * (static_cast<std::uint64_t>(tensor.count()) / channels);
  };
}

}  // namespace detent::planning
