#include "solve/sweep/stages.h"

#include <algorithm>

#include "graph/index.h"

namespace detent::solve {

std::uint64_t gram_bytes(const onnx::Model& float_model, const TunedLayer& layer) {
  const auto& node = float_model.graph.nodes[static_cast<std::size_t>(layer.float_node)];
  const auto& weight = float_model.graph.initializers[layer.float_weight];
  const auto groups = static_cast<std::uint64_t>(std::max<std::int64_t>(node.int_or("group", 1), 1));
  const bool outputs_first = layer.layout == WeightLayout::outputs_first;
  const auto outputs = static_cast<std::uint64_t>(weight.dims[outputs_first ? 0 : 1]) * (outputs_first ? 1 : groups);
  const std::uint64_t fan_in = static_cast<std::uint64_t>(weight.count()) / std::max<std::uint64_t>(outputs, 1);
  return groups * fan_in * fan_in * sizeof(float);
}

std::vector<Stage> stages_of(const std::vector<TunedLayer>& layers, const onnx::Model& float_model,
                             const onnx::Model& quantized, std::uint64_t together) {
  const graph::Index index(quantized);
  std::vector<Stage> stages;
  int first = 0;  // quantized node of the stage's first layer
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::uint64_t more = gram_bytes(float_model, layers[i]);
    const bool joins = !stages.empty() && stages.back().in_body == layers[i].in_body &&
                       index.producer(layers[i].input) < first &&
                       layers[i].quantized_node > layers[i - 1].quantized_node && bytes + more <= together;
    if (!joins) {
      const std::size_t segment = stages.empty() ? 0 : stages.back().segment + (stages.back().in_body ? 0 : 1);
      stages.push_back({{}, layers[i].in_body, segment});
      first = layers[i].quantized_node;
      bytes = 0;
    }
    bytes += more;
    stages.back().layers.push_back(i);
  }
  return stages;
}

std::vector<int> float_ends(const std::vector<TunedLayer>& layers, const std::vector<Stage>& stages) {
  std::vector<int> ends;
  for (const auto& stage : stages) {
    if (!stage.in_body) ends.push_back(layers[stage.layers.back()].float_node + 1);
  }
  return ends;
}

std::vector<int> quantized_ends(const std::vector<TunedLayer>& layers, const std::vector<Stage>& stages) {
  std::vector<int> ends;
  for (const auto& stage : stages) {
    if (!stage.in_body) ends.push_back(layers[stage.layers.front()].quantized_node);
  }
  return ends;
}

}  // namespace detent::solve
