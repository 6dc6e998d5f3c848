#include "remedies/channel_equalization.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/min_max.h"
#include "base/vector_clones.h"
#include "graph/traits.h"
#include "quantization/assignment.h"
#include "quantization/power_of_two.h"

namespace detent::remedies {
namespace {

using graph::ChannelScaling;

// Measured on sentence encoders, where 0.7 to 0.8 lose least; the paper's range is 0.5 to 0.75.
constexpr float kMigration = 0.75F;
// Channels and weights below this share of the largest count as that share: they could be larger in other samples.
constexpr float kFloor = 1.0F / 256;
// Where no weights set a limit: 4 bits more for a channel. The errors of others are larger then.
constexpr float kLeastShare = 1.0F / 16;
// What is left to be cut of values that further samples may bring: a little is better cut than made room for.
constexpr float kCut = 1.3F;
constexpr float kMostHeadroom = 4;

bool is_private_constant(const onnx::Model& model, const graph::Index& index, const std::string& name) {
  const int i = index.initializer(name);
  return i != graph::kNone && index.consumers(name).size() == 1 && !index.is_output(name) && !index.is_captured(name) &&
         model.graph.initializers[static_cast<std::size_t>(i)].type == onnx::DataType::float32;
}

std::optional<ChannelScaling::Reader> reader_of(const onnx::Model& model, const graph::Index& index, int position,
                                                const std::string& value) {
  const auto& node = model.graph.nodes[static_cast<std::size_t>(position)];
  const auto& inputs = node.inputs();
  if (!graph::is_product(node) || node.is("ConvTranspose") || std::count(inputs.begin(), inputs.end(), value) != 1 ||
      inputs[0] != value) {
    return std::nullopt;
  }
  if (!is_private_constant(model, index, inputs[1])) return std::nullopt;
  const auto& tensor = model.graph.initializers[static_cast<std::size_t>(index.initializer(inputs[1]))];
  if (tensor.count() == 0) return std::nullopt;
  if (node.is("Conv")) {
    const auto groups = node.int_or("group", 1);
    const bool depthwise = groups > 1 && tensor.dims[1] == 1 && tensor.dims[0] == groups;
    if (tensor.dims.size() < 3 || (groups != 1 && !depthwise)) return std::nullopt;
    return ChannelScaling::Reader{position, inputs[1], depthwise ? 0U : 1U};
  }
  if (tensor.dims.size() != 2 || node.int_or("transA", 0) != 0) return std::nullopt;
  return ChannelScaling::Reader{position, inputs[1], node.int_or("transB", 0) != 0 ? 1U : 0U};
}

// The quantized convolution that a value comes from. Its weights have a scale for each output, so that dividing these
// by factors changes none of their integers.
std::optional<ChannelScaling::Maker> maker_of(const onnx::Model& model, const graph::Index& index,
                                              const quantization::Placement& placement, const std::string& value) {
  int position = index.producer(value);
  if (position == graph::kNone) return std::nullopt;
  const auto* node = &model.graph.nodes[static_cast<std::size_t>(position)];
  if (node->is("Relu")) {
    const auto& before = node->inputs()[0];
    position = index.producer(before);
    if (position == graph::kNone || index.consumers(before).size() != 1 || index.is_output(before) ||
        index.is_captured(before) || placement.find(before) != nullptr)
      return std::nullopt;
    node = &model.graph.nodes[static_cast<std::size_t>(position)];
  }
  const auto& inputs = node->inputs();
  if (!node->is("Conv") || !placement.selected[static_cast<std::size_t>(position)]) return std::nullopt;
  const bool has_bias = inputs.size() > 2 && !inputs[2].empty();
  if (!is_private_constant(model, index, inputs[1]) || (has_bias && !is_private_constant(model, index, inputs[2])))
    return std::nullopt;
  const auto* mark = placement.find(inputs[1]);
  if (mark == nullptr || mark->granularity != quantization::Granularity::along(0)) return std::nullopt;
  return ChannelScaling::Maker{inputs[1], has_bias ? inputs[2] : ""};
}

// The scaling of a value, or nothing when a quantized node needs it as it is.
std::optional<ChannelScaling> scaling_of(const onnx::Model& model, const graph::Index& index,
                                         const quantization::Placement& placement, const quantization::Mark& mark) {
  ChannelScaling scaling{mark.value, true, {}, {}, {}};
  std::int64_t channels = -1;
  if (!mark.float_readers_unrounded) {
    scaling.maker = maker_of(model, index, placement, mark.value);
    if (!scaling.maker) return std::nullopt;
    const int weight = index.initializer(scaling.maker->weight);
    channels = model.graph.initializers[static_cast<std::size_t>(weight)].dims[0];
    scaling.last_axis = false;
  }
  for (const int position : index.consumers(mark.value)) {
    if (!placement.selected[static_cast<std::size_t>(position)]) continue;
    auto reader = reader_of(model, index, position, mark.value);
    if (!reader) return std::nullopt;
    const auto& weight = model.graph.initializers[static_cast<std::size_t>(index.initializer(reader->weight))];
    const bool last_axis = !model.graph.nodes[static_cast<std::size_t>(position)].is("Conv");
    const std::int64_t wanted = weight.dims[reader->axis];
    if (channels >= 0 && (wanted != channels || last_axis != scaling.last_axis)) return std::nullopt;
    channels = wanted;
    scaling.last_axis = last_axis;
    scaling.readers.push_back(std::move(*reader));
  }
  if ((scaling.readers.empty() && !scaling.maker) || channels < 2) return std::nullopt;
  return scaling;
}

const onnx::Tensor& weight_of(const onnx::Model& model, const graph::Index& index,
                              const ChannelScaling::Reader& reader) {
  return model.graph.initializers[static_cast<std::size_t>(index.initializer(reader.weight))];
}

std::vector<float> raised_to_floor(std::vector<float> values) {
  const float least = *std::max_element(values.begin(), values.end()) * kFloor;
  for (float& value : values) value = std::max({value, least, std::numeric_limits<float>::min()});
  return values;
}

std::vector<float> weight_magnitudes(const onnx::Model& model, const graph::Index& index,
                                     const ChannelScaling& scaling) {
  std::vector<float> largest;
  for (const auto& reader : scaling.readers) {
    const auto extremes =
        quantization::weight_extremes(weight_of(model, index, reader), quantization::Granularity::along(reader.axis));
    largest.resize(extremes.size());
    for (std::size_t c = 0; c < extremes.size(); ++c) {
      largest[c] = std::max({largest[c], std::abs(extremes[c].lowest()), std::abs(extremes[c].highest())});
    }
  }
  return largest;
}

quantization::ValueAssignment weight_rounding(const onnx::Tensor& weight, const quantization::Mark& mark,
                                              const QuantConfig& config) {
  auto assigned = quantization::assign_constant(mark, quantization::scan_constant(weight, mark), config);
  quantization::search_power_of_two(weight, mark, config, assigned);
  return assigned;
}

// Each bound by the value in its place.
DETENT_VECTOR_CLONES void widen_each(const float* values, std::size_t count, float* low, float* high) {
  for (std::size_t i = 0; i < count; ++i) {
    low[i] = values[i] < low[i] ? values[i] : low[i];
    high[i] = values[i] > high[i] ? values[i] : high[i];
  }
}

}  // namespace

void ChannelExtremes::add(std::span<const float> values, std::span<const std::int64_t> shape, bool last_axis) {
  if (shape.empty() || (!last_axis && shape.size() < 2)) throw bad_input("a value without channels");
  const auto count = static_cast<std::size_t>(last_axis ? shape.back() : shape[1]);
  if (samples_ == 0) halves_.fill({std::vector<float>(count), std::vector<float>(count)});
  if (count != channels()) throw bad_input(fmt::format("a value of {} channels has {} now", channels(), count));
  auto& [low, high] = halves_[samples_++ % 2];
  std::size_t run = 1;
  for (std::size_t d = 2; !last_axis && d < shape.size(); ++d) run *= static_cast<std::size_t>(shape[d]);
  if (count == 0 || run == 0) return;
  if (run == 1) {
    for (std::size_t at = 0; at < values.size(); at += count)
      widen_each(values.data() + at, count, low.data(), high.data());
    return;
  }
  for (std::size_t at = 0, c = 0; at < values.size(); at += run, c = (c + 1) % count) {
    const auto bounds = widened({low[c], high[c]}, values.subspan(at, run));
    low[c] = bounds.min;
    high[c] = bounds.max;
  }
}

double ChannelExtremes::unevenness() const {
  double sum = 0, largest = 0;
  for (std::size_t c = 0; c < channels(); ++c) {
    sum += magnitude(c);
    largest = std::max<double>(largest, magnitude(c));
  }
  return sum > 0 ? largest * static_cast<double>(channels()) / sum : 1;
}

float ChannelExtremes::headroom() const {
  if (samples_ < 2) return kMostHeadroom;
  double growth = 0;
  std::size_t counted = 0;
  for (const auto& [low, high] : halves_) {
    for (std::size_t c = 0; c < channels(); ++c) {
      const double half = std::max(high[c], -low[c]), all = magnitude(c);
      if (all == 0) continue;
      growth += half > 0 ? std::min<double>(std::log(all / half), std::log(kMostHeadroom)) : std::log(kMostHeadroom);
      ++counted;
    }
  }
  if (counted == 0) return 1;
  const auto reach = static_cast<float>(std::exp(2 * growth / static_cast<double>(counted)));
  return std::clamp(reach / kCut, 1.0F, kMostHeadroom);
}

std::vector<ChannelScaling> equalizable(const onnx::Model& model, const graph::Index& index,
                                        const quantization::Placement& placement) {
  std::vector<ChannelScaling> found;
  for (const auto& mark : placement.marks) {
    if (mark.is_constant || mark.shares || placement.fixed_ranges.contains(mark.value)) continue;
    const bool is_shared = std::any_of(placement.marks.begin(), placement.marks.end(),
                                       [&](const auto& other) { return other.shares == mark.value; });
    if (is_shared) continue;
    if (auto scaling = scaling_of(model, index, placement, mark)) found.push_back(std::move(*scaling));
  }
  return found;
}

std::vector<float> equalizing_factors(const onnx::Model& model, const graph::Index& index,
                                      const ChannelScaling& scaling, const ChannelExtremes& extremes,
                                      const calibration::Range& range) {
  std::vector<float> factors(extremes.channels());
  if (scaling.readers.empty()) {
    const float headroom = extremes.headroom();
    for (std::size_t c = 0; c < factors.size(); ++c) {
      const float below = range.min < 0 ? extremes.low(c) / range.min : 0;
      const float above = range.max > 0 ? extremes.high(c) / range.max : 0;
      factors[c] = std::clamp(headroom * std::max(below, above), kLeastShare, 1.0F);
    }
    return factors;
  }
  std::vector<float> magnitudes(factors.size());
  for (std::size_t c = 0; c < magnitudes.size(); ++c) magnitudes[c] = extremes.magnitude(c);
  magnitudes = raised_to_floor(std::move(magnitudes));
  const auto weights = raised_to_floor(weight_magnitudes(model, index, scaling));
  std::vector<double> logs(magnitudes.size());
  double mean = 0;
  for (std::size_t c = 0; c < logs.size(); ++c) {
    logs[c] = kMigration * std::log(magnitudes[c]) - (1 - kMigration) * std::log(weights.at(c));
    mean += logs[c] / static_cast<double>(logs.size());
  }
  for (std::size_t c = 0; c < logs.size(); ++c) factors[c] = static_cast<float>(std::exp(logs[c] - mean));
  return factors;
}

calibration::Range scaled_range(const ChannelScaling& scaling, const ChannelExtremes& extremes,
                                const calibration::Range& range) {
  if (scaling.readers.empty()) return range;
  const float headroom = extremes.headroom();
  calibration::Range scaled{0, 0};
  for (std::size_t c = 0; c < extremes.channels(); ++c) {
    scaled.min = std::min(scaled.min, headroom * extremes.low(c) / scaling.factors.at(c));
    scaled.max = std::max(scaled.max, headroom * extremes.high(c) / scaling.factors[c]);
  }
  return scaled;
}

Roundings scaled_roundings(const onnx::Model& model, const graph::Index& index,
                           const quantization::Placement& placement, const ChannelScaling& scaling,
                           const quantization::ValueAssignment& of_value, const QuantConfig& config) {
  Roundings roundings;
  auto& value = roundings[scaling.value];
  value = {of_value, {}, scaling.last_axis ? -1 : 1};
  for (const float f : scaling.factors) value.factors.push_back(1 / f);
  for (const auto& reader : scaling.readers) {
    const auto* mark = placement.find(reader.weight);
    if (mark == nullptr) continue;  // its weights stay in float
    const auto& weight = weight_of(model, index, reader);
    const auto scaled = graph::scaled_along(weight, reader.axis, scaling.factors);
    const auto tensor = onnx::make_tensor<float>(weight.name, weight.type, weight.dims, std::span(scaled));
    roundings[reader.weight] = {weight_rounding(tensor, *mark, config), scaling.factors,
                                static_cast<std::ptrdiff_t>(reader.axis)};
  }
  return roundings;
}

}  // namespace detent::remedies
