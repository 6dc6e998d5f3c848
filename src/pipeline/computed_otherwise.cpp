#include "pipeline/computed_otherwise.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/bytes.h"
#include "base/heap.h"
#include "detent/verify.h"
#include "onnx/model.h"
#include "profile/meters.h"
#include "remedies/stage_memory.h"
#include "run/files/outputs.h"

namespace detent::pipeline {
namespace {

constexpr std::size_t kSamples = 2;
// Kernels round halves otherwise, and products of 16 bits by a step or two: that is no other result.
constexpr double kSteps = 3;
constexpr double kShare = 0.01;  // of the elements that differ by more than one step

std::string words_for(const std::vector<std::string>& nodes) {
  if (nodes.empty()) return "no layer by itself is computed otherwise than its integers say";
  constexpr std::size_t kMost = 3;
  const auto shown = static_cast<std::ptrdiff_t>(std::min(kMost, nodes.size()));
  auto text = fmt::format("the runtime computes '{}'", fmt::join(nodes.begin(), nodes.begin() + shown, "', '"));
  if (nodes.size() > kMost) text += fmt::format(" and {} more", nodes.size() - kMost);
  return text + fmt::format(" otherwise than {} integers say", nodes.size() == 1 ? "its" : "their");
}

}  // namespace

ComputedOtherwise computed_otherwise(const QuantizeOptions& options, const onnx::Model& prepared,
                                     std::uint64_t activations) {
  trim_heap();
  const auto models =
      run::size_on_disk(onnx::read_model(options.model)) + run::size_on_disk(onnx::read_model(options.output));
  const auto needed = profile::memory_now().resident + 2 * (models + activations) + remedies::kSearchBeside;
  if (const auto budget = options.resources.memory_budget; budget && needed > *budget)
    return {{},
            fmt::format("which layer does that was not looked for, as it would take about {} of memory",
                        format_size(needed))};
  if (options.samples != nullptr) options.samples->rewind();
  VerifyOptions check;
  check.float_model = options.model;
  check.quantized_model = options.output;
  check.calibration_data = options.calibration_data.value_or("");
  check.samples = options.samples;
  check.max_samples = kSamples;
  check.batch_size = options.batch_size;
  check.input_values = options.input_values;
  check.threads = options.threads;
  check.bench = false;
  check.runtime = options.runtime;
  check.stop = options.stop;
  const auto verified = verify(check);
  std::map<std::string, std::string> ids;
  for (const auto& node : prepared.graph.nodes) ids.emplace(node.label(), node.id());
  std::vector<std::string> found;
  for (const auto& layer : verified.layers) {
    const auto id = ids.find(layer.made_by);
    if (id == ids.end() || layer.max_steps < kSteps || layer.share_over_one < kShare) continue;
    if (std::find(found.begin(), found.end(), id->second) == found.end()) found.push_back(id->second);
  }
  auto words = words_for(found);
  return {std::move(found), std::move(words)};
}

}  // namespace detent::pipeline
