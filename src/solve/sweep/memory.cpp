#include "solve/sweep/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "planning/limits.h"
#include "planning/side_by_side.h"
#include "solve/sweep/cost.h"
#include "solve/sweep/stages.h"

namespace detent::solve {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kUnknown = 128 * kMiB;  // of segments whose shapes depend on values; a quarter are buffers
constexpr std::uint64_t kBeside = 28 * kMiB;    // measured: oneDNN, a second model, heap in pieces; processors differ
// Of sums of several layers, and of samples that wait for the next layers. By default little: the rest of the samples
// is on disk, which took no longer, and a run should take what plain inference does.
constexpr std::uint64_t kTogether = 256 * kMiB, kTogetherByDefault = 32 * kMiB;
constexpr std::uint64_t kSpoolByDefault = 8 * kMiB;

planning::StagesOfForm nodes_of(const std::vector<Stage>& stages, const std::vector<int>& ends, int nodes) {
  planning::StagesOfForm form;
  for (const auto& stage : stages) {
    const std::size_t s = stage.segment;
    form.push_back({s == 0 ? 0 : ends[s - 1], s < ends.size() ? ends[s] : nodes});
  }
  return form;
}

std::uint64_t less(std::uint64_t from, std::uint64_t what) { return from - std::min(from, what); }

// Tables that are quantized stand there as integers and, since no kernel looks up pairs, as floats too. `selected`: the
// nodes of a float model that will be quantized; null: the model is quantized.
std::uint64_t dequantized_tables(const onnx::Model& model, const std::vector<bool>* selected) {
  const graph::Index index(model);
  std::map<std::string, std::uint64_t> tables;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (!graph::has_trait(node, graph::Trait::looks_up)) continue;
    const int pair = index.producer(node.inputs().front());
    const bool has_pair = pair != graph::kNone && graph::has_trait(model.graph.nodes[static_cast<std::size_t>(pair)],
                                                                   graph::Trait::dequantizes);
    if (selected != nullptr ? !(*selected)[n] : !has_pair) continue;
    const auto& name =
        has_pair ? model.graph.nodes[static_cast<std::size_t>(pair)].inputs().front() : node.inputs().front();
    const int table = index.initializer(name);
    if (table == graph::kNone) continue;
    const auto count = static_cast<std::uint64_t>(model.graph.initializers[static_cast<std::size_t>(table)].count());
    tables[name] = count * (sizeof(float) + 1);
  }
  std::uint64_t bytes = 0;
  for (const auto& [name, size] : tables) bytes += size;
  return bytes;
}

// What each layer takes at its turn, and what is there beside it.
struct Needs {
  std::vector<std::uint64_t> others;  // by layer
  std::vector<std::uint64_t> own;     // the same
  std::uint64_t together = 0;
  std::uint64_t buffers = 0;

  std::uint64_t peak() const {
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < others.size(); ++i) most = std::max(most, others[i] + own[i]);
    return most;
  }
};

// `integers`: bytes of those in the model, and as they were saved.
Needs needs_of(std::uint64_t budget, bool asked_for, const onnx::Model& float_model, const graph::ValueTypes& types,
               const onnx::Model& quantized, const std::vector<TunedLayer>& layers, std::uint64_t integers,
               std::uint64_t samples, const FinetuneConfig& config, std::size_t threads) {
  Needs needs;
  needs.together = std::min(asked_for ? kTogether : kTogetherByDefault, budget / 32);
  const auto stages = stages_of(layers, float_model, quantized, needs.together);
  std::vector<int> before;  // each segment's first layer
  for (const auto& stage : stages) {
    if (!stage.in_body) before.push_back(layers[stage.layers.front()].float_node);
  }
  // Segments of the quantized model take what the same nodes of the float model do, within a little.
  const int nodes = static_cast<int>(float_model.graph.nodes.size());
  const std::array both{nodes_of(stages, float_ends(layers, stages), nodes), nodes_of(stages, before, nodes)};
  const auto segments =
      planning::memory_side_by_side(float_model, types, both)
          .value_or(planning::SideBySide{std::vector<std::uint64_t>(stages.size(), kUnknown), kUnknown / 4});
  needs.buffers = segments.buffers;

  std::map<std::string, std::uint64_t> own;
  for (const auto& cost : layer_costs(float_model, types, config, samples, threads)) own[cost.name] = cost.bytes;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    std::uint64_t sums = 0;
    for (const auto i : stages[s].layers) sums += gram_bytes(float_model, layers[i]);
    for (const auto i : stages[s].layers) {
      needs.others.push_back(kBeside + segments.stages[s] + integers + sums - gram_bytes(float_model, layers[i]));
      needs.own.push_back(own[layers[i].name]);
    }
  }
  return needs;
}

}  // namespace

std::uint64_t planned_memory(std::uint64_t budget, bool asked_for, const onnx::Model& float_model,
                             const graph::ValueTypes& types, const std::vector<bool>& selected, std::uint64_t samples,
                             const FinetuneConfig& config, std::size_t threads) {
  auto layers = linear_layers(float_model);
  std::erase_if(layers, [&](const auto& layer) {
    const auto node = static_cast<std::size_t>(layer.float_node);
    return !selected[node] || !is_selected(float_model.graph.nodes[node], config);
  });
  if (layers.empty()) return 0;
  std::uint64_t integers = dequantized_tables(float_model, &selected);
  for (auto& layer : layers) {
    layer.quantized_node = layer.float_node;
    layer.input = layer.float_input;
    integers += 2 * static_cast<std::uint64_t>(float_model.graph.initializers[layer.float_weight].count());
  }
  return needs_of(budget, asked_for, float_model, types, float_model, layers, integers, samples, config, threads)
      .peak();
}

MemoryShares share_memory(std::uint64_t budget, bool asked_for, const onnx::Model& float_model,
                          const graph::ValueTypes& types, const onnx::Model& quantized,
                          const std::vector<TunedLayer>& layers, std::uint64_t samples, const FinetuneConfig& config,
                          std::size_t threads) {
  std::uint64_t integers = dequantized_tables(quantized, nullptr);
  for (const auto& layer : layers) integers += 2 * quantized.graph.initializers[layer.stored_weight].data.size();
  const auto needs =
      needs_of(budget, asked_for, float_model, types, quantized, layers, integers, samples, config, threads);
  const std::uint64_t peak = needs.peak();
  if (peak > budget) throw planning::over_budget("fine-tuning", peak, budget);
  MemoryShares memory;
  memory.together = needs.together;
  for (const auto others : needs.others) memory.layers.push_back(less(budget, others));
  const std::uint64_t room = less(budget, peak);
  memory.spool = planning::split_budget(asked_for ? room : std::min(room, kSpoolByDefault), needs.buffers);
  return memory;
}

}  // namespace detent::solve
