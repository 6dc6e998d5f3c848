#include "quantization/ranges.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/parallel.h"
#include "calibration/methods.h"
#include "config/targets.h"
#include "quantization/formats.h"
#include "quantization/placement/name_pattern.h"

namespace detent::quantization {
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
