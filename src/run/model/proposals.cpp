#include "run/model/proposals.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"
#include "calibration/methods.h"
#include "calibration/statistics_file.h"
#include "config/derived.h"
#include "config/presets.h"
#include "quantization/formats.h"
#include "quantization/placement/mask_ranges.h"
#include "run/files/model_fingerprint.h"
#include "run/model/consumer_functions.h"
#include "run/model/prepare.h"

namespace detent::run {
namespace {

// AccuracyConfig::other_methods that these statistics suffice for.
std::vector<CalibrationMethod> other_methods(const QuantizeOptions& options,
                                             const calibration::Statistics& statistics) {
  std::vector<CalibrationMethod> methods = options.accuracy.other_methods;
  std::erase_if(methods, [&](CalibrationMethod method) {
    return method == options.method.method ||
           (calibration::method_of(method).needs_histogram && !statistics.has_histograms);
  });
  return methods;
}

}  // namespace

quantization::RangeOptions range_options(const QuantizeOptions& options) {
  return {options.method, options.overrides, thread_count(options.threads)};
}

calibration::Statistics saved_statistics(const QuantizeOptions& options, const Fingerprint& model,
                                         data::SampleSource* source) {
  auto statistics = calibration::read_statistics(*options.statistics);
  const std::string where = fmt::format("statistics '{}'", options.statistics->string());
  if (statistics.model != model) {
    throw bad_input(fmt::format("{} were made from another model ('{}', fingerprint {}) than '{}' ({})", where,
                                statistics.model_name, statistics.model.text(), options.model.string(), model.text()),
                    "calibrate this model");
  }
  if (source != nullptr && fingerprint_of(*source) != statistics.data) {
    throw bad_input(
        fmt::format("{} were made from other samples than {}", where,
                    options.calibration_data ? "'" + options.calibration_data->string() + "'" : "those given"),
        "calibrate again, with the same --samples and --batch-size");
  }
  return statistics;
}

quantization::Proposals propose(const Prepared& prepared, const quantization::Placement& placement,
                                const calibration::Statistics& statistics, const QuantizeOptions& options,
                                const exec::Runtime& runtime) {
  const auto& accuracy = options.accuracy;
  auto by = range_options(options);
  if (config::preset(options.config).consumer_functions) {
    const quantization::GateNames no_gates;
    const auto in_float = place_qdq_pairs(prepared, options.config, {}, &no_gates);
    by.consumer_functions = consumer_functions(prepared.model, prepared.types, in_float, runtime);
  }
  by.known = quantization::mask_ranges(prepared.model, placement, statistics);
  quantization::Proposals proposals;
  proposals.ranges = quantization::find_ranges(placement, statistics, options.config, by);
  if (config::may_measure_accuracy(options) && accuracy.sensitivity == SensitivityMode::automatic &&
      config::has_samples(options)) {
    for (const auto method : other_methods(options, statistics)) {
      auto other = by;
      other.method.method = method;
      proposals.others.emplace_back(method, quantization::find_ranges(placement, statistics, options.config, other));
    }
  }
  if (accuracy.fallback == AccuracyFallback::int16 || options.config.formats_given) {
    QuantConfig wide = options.config;
    wide.activation_type = quantization::with_16_bits(wide.activation_type);
    proposals.wide = quantization::find_ranges(placement, statistics, wide, by);
  }
  return proposals;
}

}  // namespace detent::run
