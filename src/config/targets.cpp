#include "config/targets.h"

#include <algorithm>

#include "base/error.h"
#include "config/value.h"
#include "config/words.h"

namespace detent::config {
namespace {

QuantConfig plain_format() {
  QuantConfig format;
  format.preset = "plain";
  return format;
}

QuantConfig balanced_format() {
  QuantConfig format;
  format.preset = "balanced";
  format.weight_range = WeightRange::pairs;
  return format;
}

QuantConfig unquantized_format() {
  QuantConfig format;
  format.preset = "none";
  return format;
}

bool has(const std::vector<std::string_view>& given, std::string_view path) {
  return std::find(given.begin(), given.end(), path) != given.end();
}

template <class Options>
void take(const Options& from, Options& to, const std::vector<std::string_view>& given) {
  for (const auto& option : options()) {
    const std::string_view path = option.at.path;
    const bool of_target = path.starts_with("config.") || path.starts_with("method.") || path.starts_with("accuracy.");
    const auto member = option.member(to);
    if (of_target && member && !has(given, path)) copy(*read_only(option, from), *member);
  }
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all{
      {.name = "balanced",
       .help = "float where 8 bits do harm, ranges by mse",
       .format = balanced_format(),
       .method = {.method = CalibrationMethod::mse},
       .integer_chains_only = true,
       .measures_accuracy = true,
       .chooses_by_speed = true,
       .responses = true,
       .barriers = true,
       .equal_zero_points = true,
       .fast_forms = true},
      {.name = "plain",
       .help = "all that ONNX Runtime's quantize_static quantizes, with the same bits",
       .format = plain_format()},
      {.name = "none",
       .help = "nothing is quantized; with --float",
       .format = unquantized_format(),
       .quantizes = false},
  };
  return all;
}

std::vector<std::pair<std::string, std::string>> target_names() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& t : targets()) names.emplace_back(t.name, t.help);
  return names;
}

const Target& target(std::string_view name) {
  std::vector<std::string_view> all;
  for (const auto& t : targets()) {
    if (t.name == name) return t;
    all.push_back(t.name);
  }
  throw not_one_of("--preset", name, all);
}

// What is given beside a 16-bit float type alone must have a meaning there.
void check_given(const std::vector<std::string_view>& given) {
  static constexpr std::string_view kFloats[] = {"config.preset",       "config.float_type", "config.keep_io_types",
                                                 "config.nodes",        "config.op_types",   "config.exclude_op_types",
                                                 "config.exclude_nodes"};
  for (const auto& option : options()) {
    const std::string_view path = option.at.path;
    const bool of_integers = path.starts_with("config.") || path.starts_with("method.") || path == "overrides" ||
                             path.starts_with("accuracy.") || path.starts_with("finetune.") ||
                             path.starts_with("weights_only.") || path == "statistics" || path == "optimize_for" ||
                             path == "report" || path == "trace";
    const bool known = std::find(std::begin(kFloats), std::end(kFloats), path) != std::end(kFloats);
    if (of_integers && !known && has(given, path))
      throw usage_error("--" + std::string(option.name) + " is for quantization, and nothing is quantized",
                        "leave it out, or leave out --float 16, --float bf16 and --preset none");
  }
}

void resolve(QuantizeOptions& options, const std::vector<std::string_view>& given) {
  const auto type = options.config.float_type;
  const bool in_16_bits = type == FloatType::float16 || type == FloatType::bfloat16;
  if (in_16_bits && !has(given, "config.preset")) options.config.preset = "none";
  if (!target(options.config).quantizes) check_given(given);
  QuantizeOptions base;
  base.config = target(options.config).format;
  base.method = target(options.config).method;
  if (has(given, "method.method")) base.accuracy.other_methods.clear();
  take(base, options, given);
}

void resolve(CalibrateOptions& options, const std::vector<std::string_view>& given) {
  CalibrateOptions base;
  base.config = target(options.config).format;
  take(base, options, given);
}

}  // namespace detent::config

namespace detent {

QuantConfig preset_config(std::string_view preset) { return config::target(preset).format; }
MethodConfig preset_method(std::string_view preset) { return config::target(preset).method; }

}  // namespace detent
