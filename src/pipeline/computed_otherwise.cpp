#include "pipeline/computed_otherwise.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "config/derived.h"
#include "detent/verify.h"

namespace detent::pipeline {
namespace {

constexpr std::size_t kSamples = 2;
// Kernels round halves otherwise, and products of 16 bits by a step or two: that is no other result.
constexpr double kSteps = 3;
constexpr double kShare = 0.01;  // of the elements that differ by more than one step

}  // namespace

std::string words_for(const std::vector<std::string>& nodes) {
  if (nodes.empty()) return "no layer by itself is computed otherwise than its integers say";
  constexpr std::size_t kMost = 3;
  const auto shown = static_cast<std::ptrdiff_t>(std::min(kMost, nodes.size()));
  auto text = fmt::format("the runtime computes '{}'", fmt::join(nodes.begin(), nodes.begin() + shown, "', '"));
  if (nodes.size() > kMost) text += fmt::format(" and {} more", nodes.size() - kMost);
  return text + fmt::format(" otherwise than {} integers say", nodes.size() == 1 ? "its" : "their");
}

std::vector<std::string> computed_otherwise(const QuantizeOptions& options, const onnx::Model& prepared) {
  if (options.samples != nullptr) options.samples->rewind();
  VerifyOptions check;
  check.float_model = options.model;
  check.quantized_model = options.output;
  check.calibration_data = options.calibration_data.value_or("");
  check.samples = options.samples;
  check.max_samples = kSamples;
  check.batch_size = options.batch_size;
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
  return found;
}

}  // namespace detent::pipeline
