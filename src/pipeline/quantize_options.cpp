#include "pipeline/quantize_options.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/parallel.h"
#include "calibrate/methods.h"
#include "finetune/solver.h"
#include "quantize/formats.h"
#include "run/calibration_device.h"
#include "tuning/tuned_layer.h"

namespace detent::pipeline {

bool has_samples(const QuantizeOptions& options) { return options.calibration_data || options.samples != nullptr; }

namespace {

bool reads_twice(const QuantizeOptions& options) { return options.samples == nullptr || options.samples->can_rewind(); }

void check_accuracy(const QuantizeOptions& options) {
  const auto& a = options.accuracy;
  const bool measures = a.target || a.sensitivity == SensitivityMode::report;
  if (measures && options.config.preset == Preset::plain)
    throw usage_error(
        "--accuracy-target and --sensitivity report choose what stays in float, and --preset plain says so already",
        "give --preset balanced");
  if (measures && !has_samples(options))
    throw usage_error("measuring accuracy needs samples", "give --calibration-data beside --statistics");
  if (a.target && !reads_twice(options)) {
    throw usage_error("the samples can be read only once, and --accuracy-target reads them again",
                      "give something that can be iterated again, such as a list or files");
  }
  if (a.fallback != AccuracyFallback::float32 && options.config.preset == Preset::plain)
    throw usage_error("--accuracy-fallback is about what measuring finds, and --preset plain does not measure",
                      "give --preset balanced");
  if ((a.metric == AccuracyMetric::command) != (!a.command.empty() || a.score))
    throw usage_error("--accuracy-metric command and --accuracy-command go together");
  if (a.target && a.metric != AccuracyMetric::sqnr && !(*a.target > 0 && *a.target <= 1))
    throw usage_error(fmt::format("--accuracy-target: {} is not above 0 and at most 1", *a.target),
                      "a cosine, or a share of the float model's score; for decibels give --accuracy-metric sqnr");
}

void check_device(const QuantizeOptions& options) {
  const bool calibrates = !options.statistics;
  run::check_calibration_device(options.device, calibrates ? options.workers : 1);
  if (options.device.is_cpu() && options.finetune.pin_memory)
    throw usage_error("--pin-memory speeds up copies to a GPU, and fine-tuning runs on the CPU",
                      "leave it out: the result is the same");
}

}  // namespace

bool may_measure_accuracy(const QuantizeOptions& options) {
  const auto& wanted = options.accuracy;
  return options.config.preset == Preset::balanced && (wanted.sensitivity != SensitivityMode::off || wanted.target);
}

bool may_tune(const QuantizeOptions& options) {
  const auto& accuracy = options.accuracy;
  return options.finetune.rounding == Rounding::automatic && may_measure_accuracy(options) &&
         accuracy.sensitivity == SensitivityMode::automatic && !accuracy.target && has_samples(options) &&
         reads_twice(options);
}

quantization::RangeOptions range_options(const QuantizeOptions& options) {
  return {options.method, options.overrides, thread_count(options.threads)};
}

std::vector<CalibrationMethod> other_methods(const QuantizeOptions& options,
                                             const calibration::Statistics& statistics) {
  std::vector<CalibrationMethod> methods = options.accuracy.other_methods;
  std::erase_if(methods, [&](CalibrationMethod method) {
    return method == options.method.method ||
           (calibration::method_of(method).needs_histogram && !statistics.has_histograms);
  });
  return methods;
}

void check_options(const QuantizeOptions& options) {
  if (options.threads < 0) throw usage_error("--threads must not be negative");
  if (options.workers < 1) throw usage_error("--workers must be at least 1");
  if (options.batch_size < 0) throw usage_error("--batch-size must not be negative");
  if (!has_samples(options) && !options.statistics)
    throw usage_error("there is nothing to calibrate with", "give --calibration-data or --statistics");
  quantization::check_format(options.config);
  quantization::check_method(options.config, range_options(options));
  tuning::check_finetune(options.finetune);
  if (options.finetune.update_scale && options.config.power_of_two_scale) {
    throw usage_error("--update-scale finds scales that are no powers of two", "leave it out");
  }
  check_accuracy(options);
  check_device(options);
  const bool asked = tunes(options.finetune.rounding);
  if (asked && !has_samples(options)) throw usage_error("--finetune needs samples", "give --calibration-data");
  if (asked && !reads_twice(options)) {
    throw usage_error("the samples can be read only once, and fine-tuning reads them twice",
                      "give something that can be iterated again, such as a list or files");
  }
}

std::string tuning_identity(const QuantizeOptions& options) {
  const auto& t = options.finetune;
  if (!tunes(t.rounding) && !may_tune(options)) return {};
  const auto& c = options.config;
  const auto& m = options.method;
  nlohmann::json overrides = nlohmann::json::array();
  for (const auto& o : options.overrides) {
    overrides.push_back({o.tensor, o.method ? static_cast<int>(*o.method) : -1});
    if (o.range) overrides.push_back({o.range->first, o.range->second});
  }
  const nlohmann::json json{
      {"rounding", static_cast<int>(t.rounding)},
      {"form", static_cast<int>(t.form)},
      {"types", t.op_types},
      {"nodes", t.nodes},
      {"iterations", t.num_iterations},
      {"rate", t.learning_rate.value_or(0)},
      {"batch", t.batch_size},
      {"early_stop", t.early_stop},
      {"drop", t.drop_ratio},
      {"reg", t.reg_param},
      {"beta", {t.beta_range.first, t.beta_range.second}},
      {"warm", t.warm_start},
      {"bias", t.update_bias},
      {"scale", t.update_scale},
      {"damping", t.damping},
      {"order", t.activation_order},
      {"sweeps", finetune::coordinate_sweeps(t)},
      {"heaviest", t.only_heaviest_layer},
      {"seed", t.seed},
      // Another number of devices, or another layout, adds in another order.
      {"device",
       {options.device.cuda.size(), static_cast<int>(options.device.precision),
        static_cast<int>(options.device.layout)}},
      {"activation", static_cast<int>(c.activation_type)},
      {"weight", static_cast<int>(c.weight_type)},
      {"accuracy",
       {static_cast<int>(options.accuracy.sensitivity), static_cast<int>(options.accuracy.equalize),
        static_cast<int>(options.accuracy.fallback), options.accuracy.other_methods,
        options.accuracy.target.value_or(0), static_cast<int>(options.accuracy.metric), options.accuracy.command}},
      {"symmetric", {c.activation_symmetric, c.weight_symmetric.value_or(false), c.weight_symmetric.has_value()}},
      {"channel", c.per_channel},
      {"reduce", c.reduce_range},
      {"power", c.power_of_two_scale},
      {"method", static_cast<int>(m.method)},
      {"average", m.average},
      {"percentile", m.percentile},
      {"two_sided", m.two_sided},
      {"candidates", m.candidates},
      {"metric", static_cast<int>(m.metric)},
      {"common", m.most_common},
      {"entropy", {m.entropy_bins, m.entropy_levels}},
      {"overrides", overrides}};
  return json.dump();
}

}  // namespace detent::pipeline
