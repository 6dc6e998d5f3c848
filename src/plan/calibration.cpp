#include "plan/calibration.h"

#include <algorithm>
#include <unordered_map>

#include "graph/index.h"
#include "graph/liveness.h"
#include "plan/as_executed.h"

namespace detent::planning {
namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;

// Measured with ONNX Runtime 1.31 on x86-64: docs/decisions/008.
constexpr std::uint64_t kProcess = 33 * kMiB;      // detent and the runtime, a model read
constexpr std::uint64_t kSessionNode = 16 * kKiB;  // a node of a session, taps among them
constexpr std::uint64_t kHistogram = 30 * kKiB;    // a typical summary
constexpr std::uint64_t kScratch = 512 * kKiB;     // counting tables of a thread, as far as they are touched
constexpr std::uint64_t kGatheredRow = 64 * kKiB;  // pages that reading one row of a table makes resident

std::uint64_t convolution_weights(const onnx::Model& model, const graph::Index& index) {
  std::uint64_t bytes = 0;
  for (const auto& node : model.graph.nodes) {
    if (!node.is("Conv") || node.inputs().size() < 2) continue;
    const int weight = index.initializer(node.inputs()[1]);
    if (weight != graph::kNone) bytes += model.graph.initializers[static_cast<std::size_t>(weight)].data.size();
  }
  return bytes;
}

// Weights are mapped and become resident as they are read: all of them, but of tables that rows are gathered from only
// these rows.
std::uint64_t resident_weights(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.graph.initializers) {
    const auto readers = index.consumers(tensor.name);
    const bool is_table = !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](int reader) {
      const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
      return node.is("Gather") && node.inputs().front() == tensor.name;
    });
    if (!is_table) {
      bytes += tensor.data.size();
      continue;
    }
    for (const int reader : readers) {
      const auto& indices = model.graph.nodes[static_cast<std::size_t>(reader)].inputs().at(1);
      const std::uint64_t rows = graph::static_bytes(types, indices).value_or(0) / sizeof(std::int64_t);
      bytes += std::min<std::uint64_t>(rows * kGatheredRow, tensor.data.size());
    }
  }
  return bytes;
}

// What the runtime's kernels allocate beside inputs and outputs: for a transposed convolution all its products before
// they are added up.
graph::Workspace workspace_of(const Executed& executed, const graph::Index& index) {
  return [&executed, &index](const onnx::Node& node, bool) -> std::uint64_t {
    if (!node.is("ConvTranspose") || node.inputs().size() < 2) return 0;
    const int weight = index.initializer(node.inputs()[1]);
    if (weight == graph::kNone) return 0;
    const std::uint64_t input = graph::static_bytes(executed.types, node.inputs()[0]).value_or(0);
    const auto& tensor = executed.model.graph.initializers[static_cast<std::size_t>(weight)];
    const auto channels = static_cast<std::uint64_t>(std::max<std::int64_t>(tensor.dims.front(), 1));
    // Pixels of one channel, times the weights of one input channel.
    return input / channels * (static_cast<std::uint64_t>(tensor.count()) / channels);
  };
}

// Bytes of activations alive at one time, nullopt when a shape is not static.
std::optional<std::uint64_t> alive_at_once(const onnx::Model& model, const graph::Index& index,
                                           const graph::ValueTypes& types, const std::vector<std::string>& observed,
                                           bool in_blocks) {
  const Executed executed = as_executed(model, index, types, observed, in_blocks ? channel_block() : 0);
  const graph::Index executed_index(executed.model);
  const auto alive =
      graph::liveness(executed.model, executed_index, executed.types, workspace_of(executed, executed_index));
  return alive ? std::optional(alive->peak_bytes) : std::nullopt;
}

}  // namespace

exec::Tuning tuning_for(const onnx::Model& model) {
  constexpr std::uint64_t kLittle = 32 * kMiB;
  return convolution_weights(model, graph::Index(model)) <= kLittle ? exec::Tuning::blocked : exec::Tuning::lean;
}

std::uint64_t CalibrationCost::peak_memory() const {
  std::uint64_t sum = 0;
  for (const auto& part : memory) sum += part.bytes;
  return sum;
}

std::optional<CalibrationCost> calibration_cost(const onnx::Model& model, const graph::ValueTypes& types,
                                                const std::vector<std::string>& observed, const Circumstances& c) {
  const graph::Index index(model);
  const bool blocked = tuning_for(model) == exec::Tuning::blocked;
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
      {"convolution weights in blocked layout", blocked ? convolution_weights(model, index) : 0},
      {"activations alive at once", workers * *alive},
      {"samples", workers * c.sample_bytes},
      {"statistics", c.histograms ? workers * (kHistogram * observed.size() + c.threads * kScratch) : 0},
  };
  return cost;
}

}  // namespace detent::planning
