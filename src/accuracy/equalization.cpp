#include "accuracy/equalization.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "accuracy/integer_chains.h"
#include "base/error.h"
#include "quantize/params.h"

namespace detent::accuracy {
namespace {

using graph::ChannelScaling;

// Measured on sentence encoders, where 0.7 to 0.8 lose least; the paper's range is 0.5 to 0.75.
constexpr float kMigration = 0.75F;
// Channels and weights below this share of the largest count as that share: they could be larger in other samples.
constexpr float kFloor = 1.0F / 256;

std::optional<ChannelScaling::Reader> reader_of(const onnx::Model& model, const graph::Index& index, int position,
                                                const std::string& value) {
  const auto& node = model.graph.nodes[static_cast<std::size_t>(position)];
  const auto& inputs = node.inputs();
  if (!is_product(node) || node.is("ConvTranspose") || std::count(inputs.begin(), inputs.end(), value) != 1 ||
      inputs[0] != value) {
    return std::nullopt;
  }
  const int weight = index.initializer(inputs[1]);
  if (weight == graph::kNone || index.consumers(inputs[1]).size() != 1) return std::nullopt;
  const auto& tensor = model.graph.initializers[static_cast<std::size_t>(weight)];
  if (tensor.type != onnx::DataType::float32 || tensor.count() == 0) return std::nullopt;
  if (node.is("Conv")) {
    const auto groups = node.int_or("group", 1);
    const bool depthwise = groups > 1 && tensor.dims[1] == 1 && tensor.dims[0] == groups;
    if (tensor.dims.size() < 3 || (groups != 1 && !depthwise)) return std::nullopt;
    return ChannelScaling::Reader{position, inputs[1], depthwise ? 0U : 1U};
  }
  if (tensor.dims.size() != 2 || node.int_or("transA", 0) != 0) return std::nullopt;
  return ChannelScaling::Reader{position, inputs[1], node.int_or("transB", 0) != 0 ? 1U : 0U};
}

// The scaling of a value, or nothing when a quantized node needs it as it is.
std::optional<ChannelScaling> scaling_of(const onnx::Model& model, const graph::Index& index,
                                         const quantization::Placement& placement, const std::string& value) {
  ChannelScaling scaling{value, true, {}, {}};
  std::int64_t channels = -1;
  for (const int position : index.consumers(value)) {
    if (!placement.selected[static_cast<std::size_t>(position)]) continue;
    auto reader = reader_of(model, index, position, value);
    if (!reader) return std::nullopt;
    const auto& weight = model.graph.initializers[static_cast<std::size_t>(index.initializer(reader->weight))];
    const bool last_axis = !model.graph.nodes[static_cast<std::size_t>(position)].is("Conv");
    const std::int64_t wanted = weight.dims[reader->axis];
    if (channels >= 0 && (wanted != channels || last_axis != scaling.last_axis)) return std::nullopt;
    channels = wanted;
    scaling.last_axis = last_axis;
    scaling.readers.push_back(std::move(*reader));
  }
  if (scaling.readers.empty() || channels < 2) return std::nullopt;
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
    const auto extremes = quantization::weight_extremes(weight_of(model, index, reader), reader.axis);
    largest.resize(extremes.size());
    for (std::size_t c = 0; c < extremes.size(); ++c) {
      largest[c] = std::max({largest[c], std::abs(extremes[c].lowest()), std::abs(extremes[c].highest())});
    }
  }
  return largest;
}

quantization::ValueParams weight_rounding(const onnx::Tensor& weight, const quantization::Mark& mark,
                                          const QuantConfig& config) {
  const auto format = quantization::constant_format(mark, config);
  const auto extremes = quantization::weight_extremes(weight, format.axis);
  return {format.type, quantization::weight_params(extremes, format), format.axis, mark.value, {}};
}

}  // namespace

void ChannelExtremes::add(std::span<const float> values, std::span<const std::int64_t> shape, bool last_axis) {
  if (shape.empty() || (!last_axis && shape.size() < 2)) throw bad_input("a value without channels");
  const auto channels = static_cast<std::size_t>(last_axis ? shape.back() : shape[1]);
  if (low.empty()) {
    low.assign(channels, 0);
    high.assign(channels, 0);
  }
  if (channels != low.size()) throw bad_input(fmt::format("a value of {} channels has {} now", low.size(), channels));
  std::size_t run = 1;
  for (std::size_t d = 2; !last_axis && d < shape.size(); ++d) run *= static_cast<std::size_t>(shape[d]);
  for (std::size_t at = 0, c = 0; at < values.size(); at += run, c = (c + 1) % channels) {
    for (const float value : values.subspan(at, run)) {
      low[c] = std::min(low[c], value);
      high[c] = std::max(high[c], value);
    }
  }
}

float ChannelExtremes::magnitude(std::size_t channel) const noexcept { return std::max(high[channel], -low[channel]); }

double ChannelExtremes::unevenness() const {
  double sum = 0, largest = 0;
  for (std::size_t c = 0; c < low.size(); ++c) {
    sum += magnitude(c);
    largest = std::max<double>(largest, magnitude(c));
  }
  return sum > 0 ? largest * static_cast<double>(low.size()) / sum : 1;
}

std::vector<ChannelScaling> equalizable(const onnx::Model& model, const graph::Index& index,
                                        const quantization::Placement& placement) {
  std::vector<ChannelScaling> found;
  for (const auto& mark : placement.marks) {
    if (mark.is_constant || !mark.bypassed || mark.shares || placement.fixed_ranges.contains(mark.value)) continue;
    const bool is_shared = std::any_of(placement.marks.begin(), placement.marks.end(),
                                       [&](const auto& other) { return other.shares == mark.value; });
    if (is_shared) continue;
    if (auto scaling = scaling_of(model, index, placement, mark.value)) found.push_back(std::move(*scaling));
  }
  return found;
}

std::vector<float> equalizing_factors(const onnx::Model& model, const graph::Index& index,
                                      const ChannelScaling& scaling, const ChannelExtremes& extremes) {
  std::vector<float> magnitudes(extremes.low.size());
  for (std::size_t c = 0; c < magnitudes.size(); ++c) magnitudes[c] = extremes.magnitude(c);
  magnitudes = raised_to_floor(std::move(magnitudes));
  const auto weights = raised_to_floor(weight_magnitudes(model, index, scaling));
  std::vector<double> logs(magnitudes.size());
  double mean = 0;
  for (std::size_t c = 0; c < logs.size(); ++c) {
    logs[c] = kMigration * std::log(magnitudes[c]) - (1 - kMigration) * std::log(weights.at(c));
    mean += logs[c] / static_cast<double>(logs.size());
  }
  std::vector<float> factors(logs.size());
  for (std::size_t c = 0; c < logs.size(); ++c) factors[c] = static_cast<float>(std::exp(logs[c] - mean));
  return factors;
}

calibration::Range scaled_range(const ChannelScaling& scaling, const ChannelExtremes& extremes) {
  calibration::Range range{0, 0};
  for (std::size_t c = 0; c < extremes.low.size(); ++c) {
    range.min = std::min(range.min, extremes.low[c] / scaling.factors.at(c));
    range.max = std::max(range.max, extremes.high[c] / scaling.factors[c]);
  }
  return range;
}

Roundings scaled_roundings(const onnx::Model& model, const graph::Index& index,
                           const quantization::Placement& placement, const ChannelScaling& scaling,
                           const quantization::ValueParams& of_value, const QuantConfig& config) {
  Roundings roundings;
  auto& value = roundings[scaling.value];
  value = {of_value, {}, scaling.last_axis ? -1 : 1};
  for (const float f : scaling.factors) value.factors.push_back(1 / f);
  for (const auto& reader : scaling.readers) {
    const auto mark = std::find_if(placement.marks.begin(), placement.marks.end(),
                                   [&](const auto& m) { return m.value == reader.weight; });
    if (mark == placement.marks.end()) continue;  // its weights stay in float
    const auto& weight = weight_of(model, index, reader);
    const auto scaled = graph::scaled_along(weight, reader.axis, scaling.factors);
    const auto tensor = onnx::make_tensor<float>(weight.name, weight.type, weight.dims, std::span(scaled));
    roundings[reader.weight] = {weight_rounding(tensor, *mark, config), scaling.factors,
                                static_cast<std::ptrdiff_t>(reader.axis)};
  }
  return roundings;
}

}  // namespace detent::accuracy
