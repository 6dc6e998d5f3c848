#include "quantization/assignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/parallel.h"
#include "config/presets.h"
#include "config/targets.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "quantization/floats/float_rules.h"
#include "quantization/placement/selection.h"

namespace detent::quantization {
namespace {

const onnx::Tensor& tensor_of(const onnx::Model& model, const graph::Index& index, const std::string& name) {
  return model.graph.initializers.at(static_cast<std::size_t>(index.initializer(name)));
}

std::string reader_of(const onnx::Model& model, const graph::Index& index, const std::string& name) {
  const auto readers = index.consumers(name);
  return readers.empty() ? "no node" : model.graph.nodes[static_cast<std::size_t>(readers.front())].label();
}

// Else it is a table or a mask, whose infinite values may be meant so or never be read.
bool is_weight_of_product(const onnx::Model& model, const graph::Index& index, const std::string& name) {
  const auto readers = index.consumers(name);
  return std::any_of(readers.begin(), readers.end(), [&](int reader) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
    return graph::is_product(node) || node.is("LSTM");
  });
}

// Smallest scale with which the bias fits int32, times a hair. ONNX Runtime computes the per-channel case in float.
double smallest_bias_scale(float bias, bool per_channel) {
  constexpr double kSpan = 4294967294.0;  // from -(2^31 - 1) to 2^31 - 1
  const double widened = per_channel ? static_cast<double>(1.0001F * (2.0F * std::abs(bias)))
                                     : 1.0001 * (2.0 * std::abs(static_cast<double>(bias)));
  return widened / kSpan;
}

// Raises weight scales where bias / (factor * weight scale) would leave int32; the idea is TensorFlow Lite's
// (quantization_utils.cc).
void raise_scales_for_bias(const onnx::Tensor& bias, float beta, float factor, const WeightFormat& format,
                           ValueAssignment& weight) {
  std::vector<float> values(static_cast<std::size_t>(bias.count()));
  std::memcpy(values.data(), bias.data.bytes().data(), values.size() * sizeof(float));
  for (float& value : values) value *= beta;
  const bool per_channel = weight.granularity.kind == Granularity::Kind::axis;
  if (per_channel && values.size() != weight.slices.size()) return;
  const auto largest =
      std::max_element(values.begin(), values.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
  for (std::size_t c = 0; c < weight.slices.size() && !values.empty(); ++c) {
    const double smallest = smallest_bias_scale(per_channel ? values[c] : *largest, per_channel);
    auto& slice = weight.slices[c];
    const double candidate = static_cast<double>(factor) * static_cast<double>(slice.scale);
    if (!(candidate < smallest && candidate > 0)) continue;
    const double before = slice.scale;
    const double raised = before * (smallest / candidate);
    slice.scale = static_cast<float>(format.power_of_two_scale ? power_of_two_above(raised) : raised);
    if (format.symmetric) continue;  // its zero point is in the middle
    const int lowest = full_range(weight.type).min;
    slice.zero_point =
        lowest + static_cast<std::int32_t>(std::nearbyint((slice.zero_point - lowest) * before / slice.scale));
  }
}

// Integers are made with the scales that are written.
void fit_scales(ValueAssignment& value, const QuantConfig& config) {
  if (!config::writes_16_bits(config)) return;
  for (auto& slice : value.slices) slice.scale = rounded_up(slice.scale, config.float_type);
}

void share(Assignment& assignment) {
  bool progress = true;
  while (progress) {
    progress = false;
    for (const auto& mark : assignment.placement.marks) {
      if (!mark.shares || assignment.values.contains(mark.value)) continue;
      const auto provider = assignment.values.find(*mark.shares);
      if (provider == assignment.values.end()) continue;
      assignment.values[mark.value] = ValueAssignment(provider->second);
      if (mark.is_constant) assignment.values[mark.value].granularity = mark.granularity;
      progress = true;
    }
  }
  for (const auto& mark : assignment.placement.marks) {
    if (mark.shares && !assignment.values.contains(mark.value)) {
      assignment.notes.push_back(fmt::format("'{}' stays in float: it would share the scale of '{}', which has none",
                                             mark.value, *mark.shares));
    }
  }
}

// What shares a scale shares it as it was raised.
void share_raised(const std::set<std::string>& sources, Assignment& assignment) {
  std::map<std::string, std::vector<ValueAssignment*>> all;
  for (const auto& mark : assignment.placement.marks) {
    const auto found = assignment.values.find(mark.value);
    if (found != assignment.values.end() && sources.contains(found->second.source))
      all[found->second.source].push_back(&found->second);
  }
  for (const auto& [source, values] : all) {
    for (std::size_t s = 0; s < values.front()->slices.size(); ++s) {
      const auto largest = *std::max_element(values.begin(), values.end(), [&](const auto* a, const auto* b) {
        return a->slices[s].scale < b->slices[s].scale;
      });
      const auto slice = largest->slices[s];
      for (auto* value : values) value->slices[s] = slice;
    }
  }
}

// So that every bias fits int32 at its scale.
void raise_scales(const onnx::Model& model, const graph::Index& index, const QuantConfig& config,
                  Assignment& assignment) {
  std::set<std::string> raised;  // sources
  std::unordered_map<std::string, const Mark*> marks;
  for (const auto& mark : assignment.placement.marks) marks.emplace(mark.value, &mark);
  for (const auto& bias : assignment.placement.biases) {
    const auto weight = assignment.values.find(bias.weight);
    const auto input = assignment.values.find(bias.input);
    const auto mark = marks.find(bias.weight);
    if (weight == assignment.values.end() || input == assignment.values.end() || mark == marks.end() ||
        !mark->second->is_constant || mark->second->granularity.kind == Granularity::Kind::blocks)
      continue;
    raise_scales_for_bias(tensor_of(model, index, bias.bias), bias.beta,
                          bias.alpha * input->second.slices.front().scale, constant_format(*mark->second, config),
                          weight->second);
    raised.insert(weight->second.source);
  }
  share_raised(raised, assignment);
}

// Of a constant that is all 0 any scale is right, but the HTP makes another number of the 0 that has the scale 1 beside
// 16-bit values of small scales, in what chooses or joins values: it gets that of its reader's results.
void lend_scales_to_zeros(const onnx::Model& model, const graph::Index& index, Assignment& assignment) {
  const auto root = [&](const std::string& value) -> const ValueAssignment* {
    const auto* mark = assignment.placement.find(value);
    const auto found =
        mark == nullptr ? assignment.values.end() : assignment.values.find(assignment.placement.root_of(*mark).value);
    return found == assignment.values.end() ? nullptr : &found->second;
  };
  for (const auto& mark : assignment.placement.marks) {
    const auto own = assignment.values.find(mark.value);
    if (!mark.is_constant || mark.is_weight || mark.shares || own == assignment.values.end()) continue;
    auto& value = own->second;
    if (value.range.min != 0 || value.range.max != 0 || value.slices.size() != 1) continue;
    for (const int reader : index.consumers(mark.value)) {
      const auto* result = root(model.graph.nodes[static_cast<std::size_t>(reader)].outputs().front());
      if (result == nullptr || result->type != value.type || result->slices.size() != 1) continue;
      value.slices = result->slices;
      break;
    }
  }
}

// Constants that share scales have those that the largest of them needs.
void raise_shared(const Placement& placement, const ConstantScans& scans, const QuantConfig& config,
                  AssignedValues& values) {
  for (const auto& mark : placement.marks) {
    const auto scan = scans.find(mark.value);
    if (!mark.is_constant || !mark.shares || scan == scans.end()) continue;
    const auto provider = values.find(*mark.shares);
    if (provider == values.end()) continue;
    const auto own = assign_constant(mark, scan->second, config);
    for (std::size_t s = 0; s < own.slices.size(); ++s) {
      float& scale = provider->second.slices.at(s).scale;
      scale = std::max(scale, own.slices[s].scale);
    }
  }
}

IntFormat activation_format(const Mark& mark, const QuantConfig& config) {
  return {type_of(mark, config),
          config.activation_symmetric || mark.centred,
          mark.narrow,
          config.power_of_two_scale,
          false,
          config::target(config).nearest_power_of_two};
}

}  // namespace

QuantType type_of(const Mark& mark, const QuantConfig& config) {
  if (mark.is_weight) return config.weight_type;
  const auto type = mark.wide ? with_16_bits(config.activation_type) : config.activation_type;
  return mark.centred ? with_sign(type) : type;
}

WeightFormat constant_format(const Mark& mark, const QuantConfig& config) {
  const QuantType type = type_of(mark, config);
  const bool symmetric =
      mark.is_weight ? config.weight_symmetric.value_or(is_signed(type)) : config.activation_symmetric;
  // The runtime's integer kernels want one zero point for all channels, so per-channel constants are always symmetric.
  return {{type, !mark.granularity.is_tensor() || symmetric, config.weight_range == WeightRange::reduced,
           config.power_of_two_scale, mark.is_weight && config::preset(config).equal_zero_points,
           config::target(config).nearest_power_of_two},
          mark.granularity};
}

ConstantScan scan_constant(const onnx::Tensor& tensor, const Mark& mark) {
  ConstantScan scan{weight_extremes(tensor, mark.granularity), {}};
  for (const auto& summation : mark.paired) {
    auto scales = pair_scales(tensor, mark.granularity, summation);
    for (std::size_t s = 0; s < scan.pair_scales.size(); ++s) scales[s] = std::max(scales[s], scan.pair_scales[s]);
    scan.pair_scales = std::move(scales);
  }
  return scan;
}

ConstantScans scan_weights(const onnx::Model& model, Placement& placement, bool allow_nonfinite) {
  const graph::Index index(model);
  ConstantScans all;
  std::erase_if(placement.marks, [&](const Mark& mark) {
    if (!mark.is_constant) return false;
    auto scan = scan_constant(tensor_of(model, index, mark.value), mark);
    const bool finite =
        std::all_of(scan.extremes.begin(), scan.extremes.end(), [](const auto& e) { return e.finite(); });
    if (finite) {
      all[mark.value] = std::move(scan);
      return false;
    }
    const std::string what =
        fmt::format("weight '{}' ({}) holds NaN or infinite values", mark.value, reader_of(model, index, mark.value));
    if (!allow_nonfinite && is_weight_of_product(model, index, mark.value))
      throw bad_input(what, "correct the model, exclude the node with --exclude-nodes, or give --set allow-nonfinite");
    placement.notes.push_back(what + "; it stays in float");
    return true;
  });
  return all;
}

void narrow_masks(const calibration::Ranges& ranges, const Placement& placement, onnx::Model& model,
                  ConstantScans& constants) {
  const graph::Index index(model);
  for (const auto& mark : placement.marks) {
    const auto range = ranges.find(mark.value);
    if (!mark.is_constant || range == ranges.end()) continue;
    auto& tensor = model.graph.initializers.at(static_cast<std::size_t>(index.initializer(mark.value)));
    if (tensor.type != onnx::DataType::float32) continue;
    auto values = graph::floats_of(tensor);
    for (auto& value : values) value = std::max(value, range->second.min);
    tensor = onnx::make_tensor<float>(mark.value, tensor.type, tensor.dims, values);
    constants[mark.value] = scan_constant(tensor, mark);
  }
}

void copy_shared_ranges(const Placement& placement, ActivationRanges& ranges) {
  bool progress = true;  // in one round, as a rule: who shares comes after whom it shares with
  while (progress) {
    progress = false;
    for (const auto& mark : placement.marks) {
      if (!mark.shares || mark.is_constant) continue;
      const auto found = ranges.find(*mark.shares);
      progress |= found != ranges.end() && ranges.try_emplace(mark.value, ActivationRange(found->second)).second;
    }
  }
}

ValueAssignment assign_activation(const Mark& mark, const ActivationRange& range, const QuantConfig& config) {
  const auto format = activation_format(mark, config);
  ValueAssignment value{format.type, Granularity::tensor(), {compute_params(range.range.min, range.range.max, format)},
                        mark.value,  range.range,           range.origin};
  fit_scales(value, config);
  return value;
}

ValueAssignment assign_constant(const Mark& mark, const ConstantScan& scan, const QuantConfig& config) {
  const auto& extremes = scan.extremes;
  const auto format = constant_format(mark, config);
  const bool empty = extremes.empty() || extremes.front().empty();
  const auto range =
      empty ? calibration::Range{} : calibration::Range{extremes.front().lowest(), extremes.front().highest()};
  auto params = weight_params(extremes, format);
  for (std::size_t s = 0; s < params.size() && !mark.paired.empty(); ++s) {
    const float least = scan.pair_scales.at(s);
    if (params[s].scale >= least) continue;
    params[s].scale = format.power_of_two_scale ? static_cast<float>(power_of_two_above(least)) : least;
  }
  ValueAssignment value{format.type, mark.granularity, std::move(params), mark.value, range, {}};
  fit_scales(value, config);
  return value;
}

Assignment assign(const onnx::Model& model, Placement placement, const Proposals& proposals,
                  const QuantConfig& config) {
  const graph::Index index(model);
  const auto& target = config::target(config);
  Assignment assignment{.placement = std::move(placement),
                        .runtime = {.barriers = config::makes_barriers(config),
                                    .hard_sigmoids = config::writes_hard_sigmoids(config),
                                    .one_width = target.one_width,
                                    .htp = target.htp_rewrites}};
  for (const auto& mark : assignment.placement.marks) {
    if (mark.shares) continue;
    if (mark.is_constant) {
      // Without statistics it is not finite, and stays as it is.
      const auto found = proposals.constants.find(mark.value);
      if (found == proposals.constants.end()) continue;
      auto assigned = assign_constant(mark, found->second, config);
      search_power_of_two(tensor_of(model, index, mark.value), mark, config, assigned);
      assignment.values[mark.value] = std::move(assigned);
      continue;
    }
    auto range = proposals.ranges.find(mark.value);
    bool seen = range != proposals.ranges.end();
    if (const auto wide = proposals.wide.find(mark.value); mark.wide && wide != proposals.wide.end()) {
      range = wide;
      seen = true;
    }
    if (!seen) {
      assignment.notes.push_back(
          fmt::format("'{}' stays in float: no values of it were seen during calibration", mark.value));
      continue;
    }
    assignment.values[mark.value] = assign_activation(mark, range->second, config);
  }
  raise_shared(assignment.placement, proposals.constants, config, assignment.values);
  if (target.htp_rewrites) lend_scales_to_zeros(model, index, assignment);
  share(assignment);
  raise_scales(model, index, config, assignment);
  return assignment;
}

namespace {

constexpr std::size_t kScales = 5;

}  // namespace

void search_power_of_two(const onnx::Tensor& constant, const Mark& mark, const QuantConfig& config,
                         ValueAssignment& assignment) {
  if (!config.power_of_two_scale || !config::target(config).nearest_power_of_two || assignment.slices.size() != 1)
    return;
  const auto format = constant_format(mark, config);
  const auto range = mapped_range(format.type, format.symmetric, format.reduce_range);
  auto& params = assignment.slices.front();
  const double least = range.min - params.zero_point, most = range.max - params.zero_point;
  std::array<double, kScales> scales{}, errors{};
  for (std::size_t i = 0; i < kScales; ++i) scales[i] = std::ldexp(params.scale, 1 - static_cast<int>(i));
  onnx::for_each_float(constant.data, [&](std::span<const float> values, std::int64_t) {
    for (const float value : values) {
      for (std::size_t i = 0; i < kScales; ++i) {
        const double stored = std::clamp(std::nearbyint(static_cast<double>(value) / scales[i]), least, most);
        const double error = static_cast<double>(value) - stored * scales[i];
        errors[i] += error * error;
      }
    }
  });
  const auto best = std::min_element(errors.begin(), errors.end()) - errors.begin();
  params.scale = static_cast<float>(scales[static_cast<std::size_t>(best)]);
}

namespace {

using calibration::Grid;
using calibration::Range;

Grid grid_of(const Range& range, const IntFormat& format) {
  const auto p = compute_params(range.min, range.max, format);
  const IntRange full = full_range(format.type);
  const IntRange stored = format.reduce_range ? mapped_range(format.type, format.symmetric, true) : full;
  const double scale = p.scale;
  return {scale, scale * (stored.min - p.zero_point), scale * (stored.max - p.zero_point)};
}

// What is wanted for one activation.
struct Wish {
  Wish(std::string of, CalibrationMethod by, const Mark* its_mark = nullptr)
      : value(std::move(of)), method(by), mark(its_mark) {}

  std::string value;
  CalibrationMethod method;
  const Mark* mark;  // or null
  std::optional<Range> range;
  bool given = false;  // by the user
  bool fixed = false;  // by its operator

  std::string origin() const {
    return given ? "given" : fixed ? "operator" : std::string(calibration::method_name(method));
  }
};

std::vector<Wish> wishes_of(const Placement& placement, const RangeOptions& options) {
  std::vector<Wish> wishes;
  for (const auto& mark : placement.marks) {
    if (mark.is_constant || mark.shares) continue;
    const auto fixed = placement.fixed_ranges.find(mark.value);
    const auto known = options.known.find(mark.value);
    auto& wish = wishes.emplace_back(mark.value, options.method.method, &mark);
    if (known != options.known.end()) wish.range = known->second;
    if (fixed != placement.fixed_ranges.end()) wish.range = fixed->second;
    wish.fixed = wish.range.has_value();
  }
  for (const auto& value : placement.joined) wishes.emplace_back(value, options.method.method);
  for (const auto& entry : options.overrides) {
    const NamePattern pattern(entry.tensor);
    bool any = false;
    for (auto& wish : wishes) {
      if (!pattern.matches(wish.value)) continue;
      any = true;
      if (entry.method && wish.range) {
        throw usage_error(fmt::format("--set tensor-method: the range of '{}' follows from its operator", wish.value),
                          "give its range with --set tensor-range");
      }
      if (entry.method) wish.method = *entry.method;
      if (!entry.range) continue;
      wish.range = {entry.range->first, entry.range->second};
      wish.given = true;
    }
    if (!any) {
      throw usage_error(fmt::format("'{}' is not an activation with its own range", entry.tensor),
                        "detent quantize --json lists the activations and their ranges");
    }
  }
  return wishes;
}

const calibration::Summary& summary_of(const calibration::Statistics& statistics, const std::string& value) {
  const auto found = statistics.tensors.find(value);
  if (found != statistics.tensors.end()) return found->second;
  throw bad_input(fmt::format("the statistics lack tensor '{}', which these options quantize", value),
                  "calibrate with the same --preset and the same options that select nodes");
}

}  // namespace

ActivationRanges find_ranges(const Placement& placement, const calibration::Statistics& statistics,
                             const QuantConfig& config, const RangeOptions& options) {
  auto wishes = wishes_of(placement, options);
  parallel_for(wishes.size(), options.threads, [&](std::size_t i) {
    Wish& wish = wishes[i];
    if (wish.range) return;
    const auto& summary = summary_of(statistics, placement.source_of(wish.value));
    MethodConfig method = options.method;
    method.method = wish.method;
    const auto format = wish.mark == nullptr ? activation_format({}, config) : activation_format(*wish.mark, config);
    const calibration::Quantizer quantizer = [&](const Range& range) { return grid_of(range, format); };
    if (!summary.has_values()) return;
    const auto response = options.consumer_functions.find(wish.value);
    wish.range = calibration::find_range({wish.value, summary, method, config, quantizer,
                                          response == options.consumer_functions.end() ? nullptr : &response->second});
  });
  ActivationRanges ranges;
  for (auto& wish : wishes) {
    const auto least = placement.least_spans.find(wish.value);
    if (wish.range && !wish.given && least != placement.least_spans.end())
      wish.range->min = std::min(wish.range->min, wish.range->max - least->second);
    if (wish.range) ranges[wish.value] = {*wish.range, wish.origin()};
  }
  return ranges;
}

bool needs_histograms(const RangeOptions& options) {
  const auto needs = [](CalibrationMethod method) { return calibration::method_of(method).needs_histogram; };
  return needs(options.method.method) ||
         std::any_of(options.overrides.begin(), options.overrides.end(),
                     [&](const auto& entry) { return entry.method && needs(*entry.method); });
}

bool needs_votes(const QuantConfig& config, const RangeOptions& options) {
  return calibration::needs_votes(options.method, config);
}

}  // namespace detent::quantization
