#include "run/suspicious_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/traits.h"

namespace detent::run {
namespace {

// What the weights of a channel make of the largest input, as a multiple of its bias or of 1, is about 1 to 20 in
// trained models; far from that, the input was scaled otherwise in training.
constexpr double kFarAbove = 200, kFarBelow = 0.1;
constexpr double kBytes = 64, kShares = 1.5;  // above: pixels of 0 to 255, below: of 0 to 1, with or without their mean

// Of the channels of a convolution that reads `value`, the median of that multiple.
std::optional<double> multiple_at(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                                  const std::string& value, double largest) {
  if (!node.is("Conv") || node.inputs()[0] != value) return std::nullopt;
  const auto* weight = graph::float_constant(model, index, node, graph::kWeightInput);
  const auto* bias = graph::float_constant(model, index, node, 2);
  if (weight == nullptr || weight->dims.empty() || weight->dims[0] < 1) return std::nullopt;
  const auto channels = static_cast<std::size_t>(weight->dims[0]);
  const auto weights = graph::floats_of(*weight);
  const auto biases = bias == nullptr ? std::vector<float>(channels) : graph::floats_of(*bias);
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

// An input, and what only moves its values or puts others around them.
std::vector<std::string> moved(const onnx::Model& model, const graph::Index& index, const std::string& input) {
  using graph::Trait;
  std::vector<std::string> values{input};
  for (std::size_t v = 0; v < values.size(); ++v) {
    for (const int reader : index.consumers(std::string(values[v]))) {
      const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
      const bool moves = graph::has_trait(node, Trait::renames) || graph::has_trait(node, Trait::rearranges) ||
                         node.is("Pad") || node.is("Cast");
      if (moves && node.inputs()[0] == values[v]) values.push_back(node.outputs()[0]);
    }
  }
  return values;
}

std::string scale_of(const onnx::Model& model, const graph::Index& index, const std::string& input,
                     const calibration::Summary& seen) {
  const float low = seen.extremes.lowest(), high = seen.extremes.highest();
  const double largest = std::max(std::abs(low), std::abs(high));
  for (const auto& value : moved(model, index, input)) {
    for (const int reader : index.consumers(value)) {
      const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
      const auto multiple = multiple_at(model, index, node, value, largest);
      if (!multiple) continue;
      const bool too_large = largest >= kBytes && *multiple > kFarAbove;
      const bool too_small = largest > 0 && largest <= kShares && *multiple < kFarBelow;
      if (!too_large && !too_small) continue;
      return fmt::format(
          "input '{}' reaches from {:.4g} to {:.4g}, and weights and bias of {} look like values that are "
          "far {}: are the samples scaled as the application scales them?",
          input, low, high, node.label(), too_large ? "smaller, as of 0 to 1" : "larger, as of 0 to 255");
    }
  }
  return {};
}

bool has_values(const calibration::Statistics& statistics) {
  return std::any_of(statistics.tensors.begin(), statistics.tensors.end(),
                     [](const auto& tensor) { return tensor.second.has_values(); });
}

}  // namespace

std::vector<std::string> suspicions(const onnx::Model& model, const calibration::Statistics& statistics) {
  const auto samples = statistics.samples, repeated = statistics.repeated;
  if (samples > 0 && !statistics.tensors.empty() && !has_values(statistics))
    throw bad_input("the samples hold no values: an axis of their arrays has the length 0",
                    "save arrays with at least one row");
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
                                  input.name, seen.extremes.lowest() + 0.0F));
    } else if (auto note = scale_of(model, index, input.name, seen); !note.empty()) {
      notes.push_back(std::move(note));
    }
  }
  return notes;
}

}  // namespace detent::run
