#include "run/suspicious_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "graph/constants.h"
#include "graph/index.h"
#include "graph/traits.h"

namespace detent::run {
namespace {

// What the weights of a channel make of the largest input, as a multiple of its bias or of 1, is about 1 to 20 in
// trained models; far from that, the input was scaled otherwise in training.
constexpr double kFarAbove = 200, kFarBelow = 0.1;
constexpr float kBytes = 64, kShares = 1.5;  // above: pixels of 0 to 255; below: of 0 to 1

// Of the channels of a convolution that reads `value`, the median of that multiple.
std::optional<double> multiple_at(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                                  const std::string& value, double largest) {
  if (!node.is("Conv") || node.inputs()[0] != value) return std::nullopt;
  const auto* weight = graph::float_constant(model, index, node, graph::kWeightInput);
  const auto* bias = graph::float_constant(model, index, node, 2);
  if (weight == nullptr || bias == nullptr || weight->dims.empty() || weight->dims[0] < 1) return std::nullopt;
  const auto weights = graph::floats_of(*weight), biases = graph::floats_of(*bias);
  const auto channels = static_cast<std::size_t>(weight->dims[0]);
  if (biases.size() != channels) return std::nullopt;
  std::vector<double> multiples;
  for (std::size_t c = 0; c < channels; ++c) {
    double sum = 0;
    const std::size_t each = weights.size() / channels;
    for (std::size_t i = 0; i < each; ++i) sum += std::abs(static_cast<double>(weights[c * each + i]));
    if (sum > 0) multiples.push_back(largest * sum / std::max(1.0, std::abs(static_cast<double>(biases[c]))));
  }
  if (multiples.empty()) return std::nullopt;
  std::nth_element(multiples.begin(), multiples.begin() + static_cast<std::ptrdiff_t>(multiples.size() / 2),
                   multiples.end());
  return multiples[multiples.size() / 2];
}

std::string scale_of(const onnx::Model& model, const graph::Index& index, const std::string& input,
                     const calibration::Summary& seen) {
  const float low = seen.extremes.lowest(), high = seen.extremes.highest();
  for (const int reader : index.consumers(input)) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
    const auto multiple = multiple_at(model, index, node, input, std::max(std::abs(low), std::abs(high)));
    if (!multiple) continue;
    const bool too_large = low >= 0 && high >= kBytes && *multiple > kFarAbove;
    const bool too_small = high > 0 && high <= kShares && low >= -kShares && *multiple < kFarBelow;
    if (!too_large && !too_small) continue;
    return fmt::format(
        "input '{}' reaches from {:.4g} to {:.4g}, and weights and bias of {} look like values that are "
        "far {}: are the samples scaled as the application scales them?",
        input, low, high, node.label(), too_large ? "smaller, as of 0 to 1" : "larger, as of 0 to 255");
  }
  return {};
}

}  // namespace

std::vector<std::string> suspicions(const onnx::Model& model, const calibration::Statistics& statistics) {
  const auto samples = statistics.samples, repeated = statistics.repeated;
  std::vector<std::string> notes;
  if (repeated > 0 && repeated + 1 == samples) {
    notes.push_back(fmt::format("all {} samples are the same: they tell what one of them tells", samples));
  } else if (repeated > 0) {
    notes.push_back(
        fmt::format("{} of {} samples {} the same as another one", repeated, samples, repeated == 1 ? "is" : "are"));
  }
  const graph::Index index(model);
  for (const auto& input : model.graph.inputs) {
    const auto found = statistics.tensors.find(input.name);
    if (found == statistics.tensors.end() || !found->second.has_values()) continue;
    const auto& seen = found->second;
    if (seen.extremes.lowest() == seen.extremes.highest() && seen.count > 1) {
      notes.push_back(fmt::format("input '{}' is {:.4g} everywhere, in all samples: ranges found so fit no other data",
                                  input.name, seen.extremes.lowest()));
    } else if (auto note = scale_of(model, index, input.name, seen); !note.empty()) {
      notes.push_back(std::move(note));
    }
  }
  return notes;
}

}  // namespace detent::run
