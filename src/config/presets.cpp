#include "config/presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "config/enum_names.h"
#include "config/formats.h"
#include "config/targets.h"

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

QuantConfig small_floats_format() {
  QuantConfig format;
  format.preset = "floats";
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

void take(const Options& from, Options& to, const std::vector<std::string_view>& given, Command command) {
  for (const auto& option : options()) {
    const std::string_view path = option.at.path;
    const bool of_run = path.starts_with("method.") || path.starts_with("accuracy.");
    const bool of_preset = path.starts_with("config.") || (of_run && command != kCalibrate);
    if (of_preset && !has(given, path)) copy(read_only(option, from), option.at.library(to));
  }
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all{
      {.name = "balanced",
       .help = "float where 8 bits do harm, ranges by mse",
       .format = balanced_format(),
       .method = {.method = CalibrationMethod::mse},
       .integer_chains_only = true,
       .measures_accuracy = true,
       .chooses_by_speed = true,
       .consumer_functions = true,
       .barriers = true,
       .equal_zero_points = true,
       .fuses_for_runtime = true},
      {.name = "plain",
       .help = "all that ONNX Runtime's quantize_static quantizes, with the same bits",
       .format = plain_format()},
      {.name = "floats",
       .help = "8-bit floats, and float32 where they do harm",
       .format = small_floats_format(),
       .integer_chains_only = true,
       .measures_accuracy = true},
      {.name = "none",
       .help = "nothing is quantized; with --float",
       .format = unquantized_format(),
       .quantizes = false},
  };
  return all;
}

std::vector<std::pair<std::string, std::string>> preset_names() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& t : presets()) names.emplace_back(t.name, t.help);
  return names;
}

const Preset& preset(std::string_view name) {
  std::vector<std::string_view> all;
  for (const auto& t : presets()) {
    if (t.name == name) return t;
    all.push_back(t.name);
  }
  throw not_one_of("--preset", name, all);
}

unsigned results_of(const QuantizeOptions& options) {
  if (options.family.empty()) return result_of(options);
  unsigned all = 0;
  for (const auto* member : family_of(options)) all |= result_of(options_of(*member, options));
  return all;
}

bool is_off(const Option& option, const QuantizeOptions& options) {
  if (!option.of_library()) return false;
  const auto member = read_only(option, options);
  const auto* value = std::get_if<bool*>(&member);
  return value != nullptr && !**value;
}

// --no-bench does, or a switch that is off in a file; other opposites ask for something else.
bool asks_for_nothing(const Option& option, const QuantizeOptions& options) {
  return is_off(option, options) && (option.off.empty() || option.at.path == "bench");
}

// Weights in blocks are integers of --bits unless they are floats.
void check_blocks(const QuantizeOptions& options, const std::vector<std::string_view>& given) {
  if (!has(given, "config.weight_type")) return;
  const auto type = options.config.weight_type;
  const auto word = word_of(enum_names<QuantType>(), static_cast<int>(type));
  if (!is_float(type))
    throw usage_error(
        fmt::format("--weight-type {} means nothing with --weights-only, whose integers have --bits", word),
        "give --bits, or a floating-point type");
  for (const auto* path : {"weights_only.bits", "config.weight_symmetric"}) {
    if (!has(given, path)) continue;
    const bool is_bits = std::string_view(path) == "weights_only.bits";
    throw usage_error(fmt::format("--weight-type {} has its bits and no zero points", word),
                      is_bits ? "leave out --bits" : "leave out --set weight-symmetric and --set weight-asymmetric");
  }
}

// What is given must have a meaning for what the run makes.
void check_given(const QuantizeOptions& options, const std::vector<std::string_view>& given) {
  const auto results = results_of(options);
  if (results == kBlocks) check_blocks(options, given);
  const auto said = options.family.empty() ? std::span<const std::string_view>() : options_set_by_member();
  for (const auto& option : config::options()) {
    if (!has(given, option.at.path)) continue;
    if (std::find(said.begin(), said.end(), option.at.path) != said.end()) throw refused_beside_family(option);
    if ((option.results & results) != 0) continue;
    if (asks_for_nothing(option, options)) continue;
    const auto name = name_as_given(option, options);
    if (!options.family.empty()) throw usage_error(name + " means nothing to any member of --family", "leave it out");
    const auto& kind = kind_of(options);
    if (kind.result == kFloat32 && (option.results & kFloat16) != 0)
      throw usage_error(name + " means nothing with --float 32 and --preset none, which change types alone",
                        "leave it out");
    throw usage_error(fmt::format("{} {}", name, kind.without_meaning), std::string(kind.hint));
  }
}

// Whether a target's setting has a meaning for what the run makes.
bool concerns(const Option& option, const Options& options, Command command) {
  if (command == kCalibrate) return option.at.path.starts_with("config.");
  return (option.results & results_of(options)) != 0;
}

void refuse_against_target(const Target& to, const Setting& setting, const Option& option, const std::string& given) {
  const bool is_flag_off = given == "false" && !option.off.empty();
  const auto what = given == "true" ? option.spelled()
                    : is_flag_off   ? option.spelled(option.off)
                                    : fmt::format("{}{}{}", option.spelled(), option.detail ? "=" : " ", given);
  auto allowed = setting.also;
  allowed.insert(allowed.begin(), setting.value);
  const bool is_choice = given != "true" && given != "false";
  throw usage_error(fmt::format("{} contradicts --target {}: {}", what, to.name, setting.why),
                    is_choice ? fmt::format("give {}, or another target", fmt::join(allowed, " or "))
                              : "leave it out, or give another target");
}

// Gives options the values that the target wants, and adds them to `given`; refuses what was given against it. Of
// `forms`, or of all other options: the others mean something, or not, to what these make of the model.
void take_from_target(Options& options, std::vector<std::string_view>& given, bool forms, Command command) {
  const Target& to = target(options.config);
  for (const auto& setting : to.settings) {
    const bool is_form = setting.option == "float" || setting.option == "block-float" || setting.option == "preset";
    if (is_form != forms) continue;
    const auto* option = find(setting.option, kQuantize);
    const auto member = option->at.library(options);
    const bool measured = option->at.path.starts_with("accuracy.") && !preset(options.config).measures_accuracy;
    if (measured || !concerns(*option, options, command)) continue;
    if (!has(given, option->at.path)) {
      assign(*option, member, {std::string(setting.value)}, option->spelled());
      given.push_back(option->at.path);
      continue;
    }
    const auto text = text_of(member, option->form);
    const bool fits =
        text == setting.value || std::find(setting.also.begin(), setting.also.end(), text) != setting.also.end();
    if (!fits && !setting.why.empty()) refuse_against_target(to, setting, *option, text);
  }
}

namespace {

void resolve_calibration(Options& options, std::vector<std::string_view> given) {
  take_from_target(options, given, true, kCalibrate);
  take_from_target(options, given, false, kCalibrate);
  Options base;
  base.config = preset(options.config).format;
  base.config.target = options.config.target;
  take(base, options, given, kCalibrate);
}

}  // namespace

void resolve(Options& options, const std::vector<std::string_view>& user_gave, Command command) {
  if (command == kCalibrate) return resolve_calibration(options, user_gave);
  if ((command & (kQuantize | kPlan)) == 0) return;
  auto given = user_gave;
  if (!options.format.empty()) apply(format(options.format), options, given);
  const bool keeps_form = options.weights_only.enabled || !options.family.empty() || changes_cache_alone(options);
  if (!keeps_form) take_from_target(options, given, true, command);
  const auto type = options.config.float_type;
  const bool in_16_bits = type == FloatType::float16 || type == FloatType::bfloat16;
  if (in_16_bits && !options.weights_only.enabled && !has(given, "config.preset")) options.config.preset = "none";
  auto& blocks = options.weights_only;
  const bool has_floats = is_float(options.config.weight_type) || is_float(options.config.activation_type);
  const bool by_format = has_floats || options.config.block_float != BlockFloat::none;
  if (by_format && !in_16_bits && !has(given, "config.preset"))
    options.config.preset = has_floats && !blocks.enabled ? "floats" : "plain";
  const bool has_operator = !has_floats && blocks.scale_type == ScaleType::as_weight;
  if (blocks.enabled && !has_operator && !has(given, "weights_only.form")) blocks.form = WeightForm::qdq;
  check_given(options, user_gave);
  take_from_target(options, given, false, command);
  Options base;
  base.config = preset(options.config).format;
  base.config.target = options.config.target;
  base.method = preset(options.config).method;
  if (has(given, "method.method") || has_floats) base.accuracy.other_methods.clear();
  take(base, options, given, command);
}

std::string name_as_given(const Option& option, const QuantizeOptions& options) {
  return option.spelled(is_off(option, options) && !option.off.empty() ? option.off : option.name);
}

}  // namespace detent::config

namespace detent {

QuantConfig preset_config(std::string_view preset) { return config::preset(preset).format; }
MethodConfig preset_method(std::string_view preset) { return config::preset(preset).method; }

}  // namespace detent

namespace detent::config {
namespace {

bool has_8_bits(QuantType type) { return type == QuantType::int8 || type == QuantType::uint8; }

}  // namespace

bool has_samples(const QuantizeOptions& options) { return options.calibration_data || options.samples != nullptr; }

bool changes_cache_alone(const QuantizeOptions& options) {
  return options.kv_cache.type != KvCacheType::keep && !preset(options.config).quantizes &&
         options.config.float_type == FloatType::keep && !options.weights_only.enabled;
}

bool searches_formats(const QuantizeOptions& options) {
  return options.max_latency || (options.weights_only.max_size && !options.weights_only.enabled);
}

namespace {

bool chooses_forms(const QuantizeOptions& options) {
  const auto& config = options.config;
  return preset(config).chooses_by_speed && target(config).is_this_machine && !writes_16_bits(config) &&
         config.op_types.empty() && config.nodes.empty() && has_8_bits(config.activation_type) &&
         has_8_bits(config.weight_type) && !config.power_of_two_scale &&
         options.accuracy.fallback == AccuracyFallback::float32;
}

// For ONNX Runtime's CPU, which makes floats of weights of 8 bits when it loads the model.
bool stores_weights(const QuantConfig& config) {
  return preset(config).measures_accuracy && target(config).is_ort_cpu && !writes_16_bits(config) &&
         !config.formats_given && has_8_bits(config.activation_type) && has_8_bits(config.weight_type);
}

}  // namespace

bool chooses_by_speed(const QuantizeOptions& options) {
  return chooses_forms(options) && options.optimize_for != OptimizeFor::size;
}

bool chooses_by_size(const QuantizeOptions& options) {
  return chooses_forms(options) && options.optimize_for == OptimizeFor::size;
}

bool writes_16_bits(const QuantConfig& config) {
  return config.float_type == FloatType::float16 || config.float_type == FloatType::bfloat16;
}

bool makes_barriers(const QuantConfig& config) {
  return preset(config).barriers && target(config).is_ort_cpu && !writes_16_bits(config);
}

bool writes_hard_sigmoids(const QuantConfig& config) {
  return preset(config).fuses_for_runtime && target(config).is_ort_cpu && !writes_16_bits(config);
}

bool tries_recurrent(const QuantConfig& config) {
  return stores_weights(config) && config.op_types.empty() && config.nodes.empty();
}

bool may_measure_accuracy(const QuantizeOptions& options) {
  const auto& wanted = options.accuracy;
  return preset(options.config).measures_accuracy && (wanted.sensitivity != SensitivityMode::off || wanted.target);
}

bool applies_remedies(const QuantizeOptions& options) {
  return options.accuracy.target || options.accuracy.sensitivity == SensitivityMode::automatic;
}

bool tries_stored_weights(const QuantizeOptions& options) {
  return stores_weights(options.config) && may_measure_accuracy(options) && has_samples(options) &&
         applies_remedies(options) && options.optimize_for != OptimizeFor::accuracy;
}

bool may_tune(const QuantizeOptions& options) {
  const auto& accuracy = options.accuracy;
  return !is_float(options.config.weight_type) && options.finetune.solver == WeightSolver::automatic &&
         may_measure_accuracy(options) && accuracy.sensitivity == SensitivityMode::automatic && !accuracy.target &&
         has_samples(options);
}

}  // namespace detent::config
