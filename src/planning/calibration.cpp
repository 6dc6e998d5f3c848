#include "planning/calibration.h"

#include "graph/index.h"
#include "graph/liveness.h"
#include "planning/as_executed.h"
#include "planning/parts.h"

namespace detent::planning {
namespace {

std::uint64_t resident_weights(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.graph.initializers) bytes += resident_bytes(model, index, types, tensor);
  return bytes;
}

// Bytes of activations alive at one time, nullopt when a shape is not static.
std::optional<std::uint64_t> alive_at_once(const onnx::Model& model, const graph::Index& index,
                                           const graph::ValueTypes& types, const std::vector<std::string>& observed,
                                           bool in_blocks) {
  const Executed executed = as_executed(model, index, types, observed, in_blocks ? channel_block() : 0);
  const graph::Index executed_index(executed.model);
  const auto alive = graph::liveness(executed.model, executed_index, executed.types,
                                     workspace_of(executed.model, executed_index, executed.types, false));
  return alive ? std::optional(alive->peak_bytes) : std::nullopt;
}

}  // namespace

exec::SessionMode session_mode_for(const onnx::Model& model) {
  constexpr std::uint64_t kLittle = 32 * kMiB;
  return convolution_weights(model) <= kLittle ? exec::SessionMode::blocked : exec::SessionMode::lean;
}

bool runs_in_blocks(const onnx::Model& model) {
  return channel_block() > 0 && session_mode_for(model) == exec::SessionMode::blocked;
}

std::uint64_t CalibrationCost::peak_memory() const {
  std::uint64_t sum = 0;
  for (const auto& part : memory) sum += part.bytes;
  return sum;
}

std::uint64_t statistics_bytes(const Circumstances& c) {
  return c.histograms ? c.workers * (kHistogram * c.observed + c.threads * kScratch) : 0;
}

std::optional<CalibrationCost> calibration_cost(const onnx::Model& model, const graph::ValueTypes& types,
                                                const std::vector<std::string>& observed, const Circumstances& c) {
  const graph::Index index(model);
  const bool blocked = runs_in_blocks(model);
  const auto alive = alive_at_once(model, index, types, observed, blocked);
  if (!alive) return std::nullopt;
  CalibrationCost cost;
  for (const auto& node : model.graph.nodes) {
    const auto work = graph::work_of(model, index, types, node);
    if (work) cost.work += *work;
  }
  for (const auto& value : observed)
    cost.observed_elements += graph::static_bytes(types, value).value_or(0) / sizeof(float);

  const std::uint64_t workers = c.workers;
  cost.memory = {
      {"detent and ONNX Runtime", kProcess},
      {"session", kSessionNode * (model.graph.nodes.size() + observed.size())},
      {"weights, mapped from the file", resident_weights(model, index, types)},
      {"convolution weights in blocked layout", blocked ? convolution_weights(model) : 0},
      {"activations alive at once", workers * *alive},
      {"samples", workers * c.sample_bytes},
      {"statistics", statistics_bytes(c)},
  };
  if (c.beside > 0) cost.memory.push_back({"trials", c.beside});
  return cost;
}

}  // namespace detent::planning
