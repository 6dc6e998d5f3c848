#include "quantize/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "graph/index.h"

namespace detent::quantization {
namespace {

const onnx::Tensor& tensor_of(const onnx::Model& model, const graph::Index& index, const std::string& name) {
  return model.graph.initializers.at(static_cast<std::size_t>(index.initializer(name)));
}

std::string reader_of(const onnx::Model& model, const graph::Index& index, const std::string& name) {
  const auto readers = index.consumers(name);
  return readers.empty() ? "no node" : model.graph.nodes[static_cast<std::size_t>(readers.front())].label();
}

// Smallest scale with which the bias fits int32, times a hair. ONNX Runtime computes the per-channel case in float.
double smallest_bias_scale(float bias, bool per_channel) {
  constexpr double kSpan = 4294967294.0;  // from -(2^31 - 1) to 2^31 - 1
  const double widened = per_channel ? static_cast<double>(1.0001F * (2.0F * std::abs(bias)))
                                     : 1.0001 * (2.0 * std::abs(static_cast<double>(bias)));
  return widened / kSpan;
}

// Raises weight scales where bias / (input scale * weight scale) would leave int32; the idea is TensorFlow Lite's
// (quantization_utils.cc).
void raise_scales_for_bias(const onnx::Tensor& bias, float beta, float input_scale, bool power_of_two,
                           ValueParams& weight) {
  std::vector<float> values(static_cast<std::size_t>(bias.count()));
  std::memcpy(values.data(), bias.data.bytes().data(), values.size() * sizeof(float));
  for (float& value : values) value *= beta;
  const bool per_channel = weight.axis.has_value();
  if (per_channel && values.size() != weight.channels.size()) return;
  const auto largest =
      std::max_element(values.begin(), values.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
  for (std::size_t c = 0; c < weight.channels.size() && !values.empty(); ++c) {
    const double smallest = smallest_bias_scale(per_channel ? values[c] : *largest, per_channel);
    float& scale = weight.channels[c].scale;
    const double candidate = static_cast<double>(input_scale) * static_cast<double>(scale);
    if (!(candidate < smallest && candidate > 0)) continue;
    const double raised = static_cast<double>(scale) * (smallest / candidate);
    scale = static_cast<float>(power_of_two ? power_of_two_above(raised) : raised);
  }
}

void share(const Placement& placement, Params& params, std::vector<std::string>& notes) {
  bool progress = true;
  while (progress) {
    progress = false;
    for (const auto& mark : placement.marks) {
      if (!mark.shares || params.contains(mark.value)) continue;
      const auto provider = params.find(*mark.shares);
      if (provider == params.end()) continue;
      params[mark.value] = ValueParams(provider->second);
      progress = true;
    }
  }
  for (const auto& mark : placement.marks) {
    if (mark.shares && !params.contains(mark.value)) {
      notes.push_back(fmt::format("'{}' stays in float: it would share the scale of '{}', which has none", mark.value,
                                  *mark.shares));
    }
  }
}

}  // namespace

QuantType type_of(const Mark& mark, const QuantConfig& config) {
  if (mark.is_weight) return config.weight_type;
  return mark.wide ? widened(config.activation_type) : config.activation_type;
}

WeightFormat constant_format(const Mark& mark, const QuantConfig& config) {
  const QuantType type = type_of(mark, config);
  const bool symmetric =
      mark.is_weight ? config.weight_symmetric.value_or(is_signed(type)) : config.activation_symmetric;
  // The runtime's integer kernels want one zero point for all channels, so per-channel constants are always symmetric.
  return {{type, mark.axis.has_value() || symmetric, config.reduce_range, config.power_of_two_scale}, mark.axis};
}

WeightExtremes scan_weights(const onnx::Model& model, Placement& placement, bool allow_nonfinite) {
  const graph::Index index(model);
  WeightExtremes all;
  std::erase_if(placement.marks, [&](const Mark& mark) {
    if (!mark.is_constant) return false;
    auto extremes = weight_extremes(tensor_of(model, index, mark.value), mark.axis);
    const bool finite = std::all_of(extremes.begin(), extremes.end(), [](const auto& e) { return e.finite(); });
    if (finite) {
      all[mark.value] = std::move(extremes);
      return false;
    }
    const std::string what =
        fmt::format("weight '{}' ({}) holds NaN or infinite values", mark.value, reader_of(model, index, mark.value));
    if (!allow_nonfinite)
      throw bad_input(what, "correct the model, exclude the node with --exclude-nodes, or give --allow-nonfinite");
    placement.notes.push_back(what + "; it stays in float");
    return true;
  });
  return all;
}

Params compute_all(const onnx::Model& model, const Placement& placement, const calibration::Ranges& ranges,
                   const WeightExtremes& extremes, const QuantConfig& config, std::vector<std::string>& notes) {
  const graph::Index index(model);
  Params params;
  for (const auto& mark : placement.marks) {
    if (mark.shares) continue;
    if (mark.is_constant) {
      const auto format = constant_format(mark, config);
      const auto& found = extremes.at(mark.value);
      const bool empty = found.empty() || found.front().empty();
      const auto range =
          empty ? calibration::Range{} : calibration::Range{found.front().lowest(), found.front().highest()};
      params[mark.value] = {format.type, weight_params(found, format), format.axis, mark.value, range};
      continue;
    }
    const auto seen = ranges.find(mark.value);
    if (seen == ranges.end()) {
      notes.push_back(fmt::format("'{}' stays in float: no values of it were seen during calibration", mark.value));
      continue;
    }
    const auto& range = seen->second;
    const IntFormat format{type_of(mark, config), config.activation_symmetric, false, config.power_of_two_scale};
    params[mark.value] = {format.type, {compute_params(range.min, range.max, format)}, std::nullopt, mark.value, range};
  }
  share(placement, params, notes);
  for (const auto& bias : placement.biases) {
    const auto weight = params.find(bias.weight);
    const auto input = params.find(bias.input);
    if (weight == params.end() || input == params.end() || index.initializer(bias.weight) == graph::kNone) continue;
    const bool symmetric = std::all_of(weight->second.channels.begin(), weight->second.channels.end(),
                                       [](const auto& p) { return p.zero_point == 0; });
    if (!is_signed(weight->second.type) || !symmetric) continue;
    raise_scales_for_bias(tensor_of(model, index, bias.bias), bias.beta, input->second.channels.front().scale,
                          config.power_of_two_scale, weight->second);
  }
  return params;
}

}  // namespace detent::quantization
