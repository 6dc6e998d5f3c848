#include "config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/conflicts.h"
#include "config/derived.h"
#include "config/enum_names.h"
#include "config/family.h"
#include "config/formats.h"
#include "config/node_formats.h"
#include "config/presets.h"
#include "config/targets.h"
#include "config/value.h"

namespace detent::config {
namespace {

std::string bounds_text(const Bounds& b) {
  const bool bounded = std::isfinite(b.max);
  if (b.above) return bounded ? fmt::format("above {} and at most {}", b.min, b.max) : fmt::format("above {}", b.min);
  return bounded ? fmt::format("between {} and {}", b.min, b.max) : fmt::format("at least {}", b.min);
}

void check(const Option& option, double value) {
  const Bounds& b = option.bounds;
  if ((b.above ? value > b.min : value >= b.min) && value <= b.max) return;
  const bool sign = b.min == 0 && !b.above && !std::isfinite(b.max);
  throw usage_error(fmt::format("{} must {}", option.spelled(), sign ? "not be negative" : "be " + bounds_text(b)));
}

// Numbers against the bounds in their rows.
template <class Options>
void check_bounds(const Options& given, unsigned command) {
  for (const auto& option : options()) {
    if ((option.commands & command) == 0) continue;
    const auto member = read_only(option, given);
    if (!member || option.bounds.min == Bounds().min) continue;
    std::visit(Overloaded{[&]<class T>(const T* value) {
                            if constexpr (std::is_arithmetic_v<T>) check(option, static_cast<double>(*value));
                          },
                          [&](const std::optional<double>* value) {
                            if (*value) check(option, **value);
                          },
                          [&](const std::vector<double>* values) {
                            if (values->empty()) throw usage_error(fmt::format("{} is empty", option.spelled()));
                            for (const double v : *values) check(option, v);
                          },
                          [&](const std::pair<double, double>* pair) {
                            check(option, pair->first);
                            check(option, pair->second);
                          },
                          [](const Choice&) {}, [](const Choices&) {}},
               *member);
  }
}

void check_range(const TensorOverride& entry) {
  const auto [min, max] = *entry.range;
  if (std::isfinite(min) && std::isfinite(max) && min <= max) return;
  throw usage_error(fmt::format("--set tensor-range: {} to {} is not a range for '{}'", min, max, entry.tensor),
                    "give NAME=MIN,MAX with finite MIN <= MAX");
}

// Facts of single options that the bounds of their rows cannot state.
void check_values(const QuantizeOptions& options) {
  (void)preset(options.config);
  check_format(options);
  for (const auto& entry : options.node_formats) (void)parse_node_format(entry);
  for (const auto& entry : options.overrides) {
    if (entry.range) check_range(entry);
  }
}

// Its members are looked at one by one.
void check_family(const QuantizeOptions& options) {
  const QuantizeOptions none;
  for (const auto& option : config::options()) {
    const auto said = options_set_by_member();
    const bool may_be_preset = option.at.path == "config.preset" || option.at.path == "config.weight_type";
    if (may_be_preset || std::find(said.begin(), said.end(), option.at.path) == said.end()) continue;
    if (text_of(*read_only(option, options), option.form) != text_of(*read_only(option, none), option.form))
      throw refused_beside_family(option);
  }
  bool any_16_bits = false;
  for (const auto* member : family_of(options)) {
    const auto of_member = options_of(*member, options);
    any_16_bits = any_16_bits || writes_16_bits(of_member.config);
    if (!member->format.empty()) validate(of_member);
  }
  if (!any_16_bits && !options.config.keep_io_types)
    throw usage_error(
        "--set no-keep-io-types is about --float 16, bf16 and 32, and no member of --family changes a type",
        "leave it out");
}

// What says how nodes are quantized is what the search is to find out.
void check_searched(const QuantizeOptions& options) {
  constexpr std::string_view kMayBeSaid[] = {
      "weights_only.max_size", "accuracy.target", "accuracy.metric", "accuracy.command", "kernel_table",
      "calibration_data",      "samples",         "max_samples",     "batch_size",       "input_values"};
  const auto limit = options.max_latency ? "--max-latency" : "--max-size without --weights-only";
  QuantizeOptions none;
  none.config = preset_config("balanced");
  resolve(none, {});
  const auto is_searched = [&](const Option& option) {
    const bool may_be_said =
        std::find(std::begin(kMayBeSaid), std::end(kMayBeSaid), option.at.path) != std::end(kMayBeSaid);
    if (may_be_said || (option.commands & kQuantize) == 0) return false;
    if (option.affects == Affects::nothing && option.at.path != "format") return false;
    const auto given = read_only(option, options);
    return given && text_of(*given, option.form) != text_of(*read_only(option, none), option.form);
  };
  for (const auto& option : config::options()) {
    if (!is_searched(option)) continue;
    // Without having been given they follow from the method.
    const auto name = option.at.path == "accuracy.other_methods" ? "--method" : name_as_given(option, options);
    throw usage_error(
        fmt::format("{} does not go with {}, which searches for the best format of each node", name, limit),
        "leave out one of them");
  }
  if (!has_samples(options))
    throw usage_error(fmt::format("{} needs samples, on which models are measured", limit), "give --calibration-data");
}

}  // namespace

void validate(const QuantizeOptions& options, Command command) {
  check_bounds(options, command);
  if (searches_formats(options)) check_searched(options);
  if (!options.family.empty()) return check_family(options);
  check_values(options);
  check_conflicts(options, command);
}

void validate(const CalibrateOptions& options) {
  check_bounds(options, kCalibrate);
  QuantizeOptions beside;
  beside.config = options.config;
  beside.device = options.device;
  beside.workers = options.workers;
  check_conflicts(beside, kCalibrate);
  if (options.most_common && !options.histograms)
    throw usage_error("--set most-common needs histograms", "leave out --no-histogram");
}

void validate(const CompareOptions& options) { check_bounds(options, kCompare); }

void validate(const VerifyOptions& options) { check_bounds(options, kVerify); }

void validate(const SearchOptions& options) {
  check_bounds(options, kSearch);
  if (!options.calibration_data && options.samples == nullptr)
    throw usage_error("search needs samples, on which models are measured", "give --calibration-data");
  for (const auto& name : options.formats) (void)node_format(name, "--formats");
  const auto& accuracy = options.accuracy;
  const bool has_score = !accuracy.command.empty() || accuracy.score;
  if ((accuracy.metric == AccuracyMetric::command) != has_score)
    throw usage_error("--accuracy-metric command and --accuracy-command go together");
  if (options.machines.has_value() != options.requests.has_value())
    throw usage_error("--machines and --requests go together",
                      "say how many requests a second the machines must serve");
  if (options.machines && options.threads > 1)
    throw usage_error("--machines: each thread of a machine computes a request alone", "leave out --threads");
}

void validate(const BenchOptions& options) {
  check_bounds(options, kBench);
  if (options.models.empty()) throw usage_error("there is no model to time", "name one or more");
}

}  // namespace detent::config
