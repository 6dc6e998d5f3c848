#include "config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/derived.h"
#include "config/enum_names.h"
#include "config/family.h"
#include "config/presets.h"
#include "config/targets.h"
#include "config/value.h"

namespace detent::config {
namespace {

std::string wish(const Bounds& b) {
  const bool bounded = std::isfinite(b.max);
  if (b.above) return bounded ? fmt::format("above {} and at most {}", b.min, b.max) : fmt::format("above {}", b.min);
  return bounded ? fmt::format("between {} and {}", b.min, b.max) : fmt::format("at least {}", b.min);
}

void check(const Option& option, double value) {
  const Bounds& b = option.bounds;
  if ((b.above ? value > b.min : value >= b.min) && value <= b.max) return;
  const bool sign = b.min == 0 && !b.above && !std::isfinite(b.max);
  throw usage_error(fmt::format("--{} must {}", option.name, sign ? "not be negative" : "be " + wish(b)));
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
                            if (values->empty()) throw usage_error(fmt::format("--{} is empty", option.name));
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

bool is_4_bit(QuantType type) { return type == QuantType::int4 || type == QuantType::uint4; }

void check_range(const TensorOverride& entry) {
  const auto [min, max] = *entry.range;
  if (std::isfinite(min) && std::isfinite(max) && min <= max) return;
  throw usage_error(fmt::format("--tensor-range: {} to {} is not a range for '{}'", min, max, entry.tensor),
                    "give NAME=MIN,MAX with finite MIN <= MAX");
}

void check_measuring(const QuantizeOptions& options) {
  const auto& a = options.accuracy;
  const bool measures = a.target || a.sensitivity == SensitivityMode::report;
  const bool may_measure = preset(options.config).measures_accuracy;
  if (measures && !may_measure)
    throw usage_error(fmt::format("--accuracy-target and --sensitivity report choose what stays in float, and --preset "
                                  "{} says so already",
                                  options.config.preset),
                      "give --preset balanced");
  if (measures && !has_samples(options))
    throw usage_error("measuring accuracy needs samples", "give --calibration-data beside --statistics");
  if (a.fallback != AccuracyFallback::float32 && !may_measure)
    throw usage_error(fmt::format("--accuracy-fallback is about what measuring finds, and --preset {} does not measure",
                                  options.config.preset),
                      "give --preset balanced");
}

void check_metric(const AccuracyConfig& a) {
  if ((a.metric == AccuracyMetric::command) != (!a.command.empty() || a.score))
    throw usage_error("--accuracy-metric command and --accuracy-command go together");
  if (a.target && a.metric != AccuracyMetric::sqnr && !(*a.target > 0 && *a.target <= 1))
    throw usage_error(fmt::format("--accuracy-target: {} is not above 0 and at most 1", *a.target),
                      "a cosine, or a share of the float model's score; for decibels give --accuracy-metric sqnr");
}

void check_blocks_target(const QuantizeOptions& options) {
  if (!options.accuracy.target) return;
  if (options.weights_only.max_size)
    throw usage_error("--max-size and --accuracy-target both choose the bits of weights", "give one of them");
  if (options.weights_only.sparsity != WeightSparsity::none)
    throw usage_error("--sparsity 2:4 and --accuracy-target do not go together", "leave out one of them");
  if (!has_samples(options))
    throw usage_error("--accuracy-target needs samples, on which the model is measured", "give --calibration-data");
}

void check_floats(const QuantConfig& config, Command command) {
  const bool quantizes = preset(config).quantizes;
  if (quantizes && writes_16_bits(config) && config.quant_format == QuantFormat::qoperator)
    throw usage_error("--quant-format qoperator: operators on integers have scales of float32", "give --float 32");
  if (!quantizes && (config.float_type == FloatType::keep || command != kQuantize))
    throw usage_error("--preset none quantizes nothing",
                      "give another preset, or quantize --float 16, bf16 or 32, or --kv-cache");
}

void check_samples(const QuantizeOptions& options) {
  if (!preset(options.config).quantizes || options.config.block_float != BlockFloat::none) return;
  if (!has_samples(options) && !options.statistics)
    throw usage_error("there is nothing to calibrate with", "give --calibration-data or --statistics");
  if (!tunes(options.finetune.rounding)) return;
  if (!has_samples(options)) throw usage_error("--finetune needs samples", "give --calibration-data");
}

void check_io_types(const QuantConfig& config) {
  if (!config.keep_io_types && config.float_type == FloatType::keep)
    throw usage_error("--no-keep-io-types is about --float 16, bf16 and 32, and no type is changed here",
                      "leave it out");
}

// Nothing is looked for: no integers, no ranges.
void check_block_floats(const QuantizeOptions& options) {
  const auto& config = options.config;
  if (config.block_float == BlockFloat::none) return;
  if (writes_16_bits(config))  // which makes the preset none
    throw usage_error("--block-float and --float are both the format of all numbers", "leave out one of them");
  if (preset(config).measures_accuracy || !preset(config).quantizes)
    throw usage_error(fmt::format("--block-float does not go with --preset {}", config.preset),
                      "leave out --preset, or give plain");
  if (tunes(options.finetune.rounding))
    throw usage_error("--finetune looks for integers, and --block-float makes none", "leave it out");
  if (!options.device.is_cpu()) throw usage_error("--block-float runs on the CPU", "leave out --device");
}

// What products of floats are not: grids of integers.
void check_float_types(const QuantConfig& config) {
  const auto word = [](QuantType type) { return word_of(enum_names<QuantType>(), static_cast<int>(type)); };
  if (config.weight_type == QuantType::float4e2m1 || config.activation_type == QuantType::float4e2m1)
    throw usage_error("float4e2m1 is for weights in blocks", "add --weights-only, or give float8e4m3fn");
  if (!is_float(config.weight_type) && !is_float(config.activation_type)) return;
  if (!is_float(config.weight_type) || !is_float(config.activation_type))
    throw usage_error(fmt::format("--activation-type {} and --weight-type {} do not go together",
                                  word(config.activation_type), word(config.weight_type)),
                      "give floating-point types for both, or --weights-only for weights alone");
  if (preset(config).measures_accuracy)
    throw usage_error(fmt::format("--preset {} measures what integers do to a model, and --weight-type {} is none",
                                  config.preset, word(config.weight_type)),
                      "give --preset plain, or leave it out");
  if (config.quant_format == QuantFormat::qoperator)
    throw usage_error("--quant-format qoperator has no operators on 8-bit floats", "leave it out");
  if (config.weight_range == WeightRange::reduced)
    throw usage_error("--weight-range reduced is for products of integers", "leave it out");
}

void check_float_methods(const MethodConfig& method, const std::vector<TensorOverride>& overrides) {
  const auto fits = [](CalibrationMethod m) {
    return m == CalibrationMethod::minmax || m == CalibrationMethod::percentile;
  };
  const bool all = std::all_of(overrides.begin(), overrides.end(),
                               [&](const auto& entry) { return !entry.method || fits(*entry.method); });
  if (fits(method.method) && all) return;
  throw usage_error("floating-point types take ranges by minmax or percentile; the other methods weigh integers",
                    "give --method minmax or percentile");
}

}  // namespace

void validate(const QuantConfig& config) {
  (void)preset(config);
  check_float_types(config);
  if (is_4_bit(config.activation_type))
    throw usage_error("--activation-type: 4-bit types are for weights only", "choose from: int8, int16, uint8, uint16");
  if (config.weight_range == WeightRange::reduced && is_4_bit(config.weight_type))
    throw usage_error("--weight-range reduced does not go with 4-bit weights",
                      "leave it out: it is for 8-bit products");
}

void validate(const QuantConfig& config, const MethodConfig& method, const std::vector<TensorOverride>& overrides) {
  if (method.entropy_bins < method.entropy_levels)
    throw usage_error("--entropy-bins must be at least --entropy-levels");
  if (method.most_common && !(config.power_of_two_scale && config.activation_symmetric)) {
    throw usage_error("--most-common chooses between power-of-two scales of symmetric activations",
                      "add --power-of-two-scale --activation-symmetric");
  }
  for (const auto& entry : overrides) {
    if (entry.range) check_range(entry);
  }
  if (is_float(config.activation_type)) check_float_methods(method, overrides);
}

void validate(const FinetuneConfig& config) {
  if (!tunes(config.rounding)) return;
  if (config.rounding == WeightSolver::gptq && (config.form == FinetuneForm::streamed || config.drop_ratio < 1))
    throw usage_error("--finetune gptq works in the Gram form", "leave out --finetune-form streamed and --drop-ratio");
  if (config.form == FinetuneForm::gram && config.drop_ratio < 1)
    throw usage_error("--finetune-form gram cannot mix inputs of both models", "leave out --drop-ratio");
  if (config.update_scale && config.rounding != WeightSolver::adaquant)
    throw usage_error("--update-scale goes with --finetune adaquant", "leave it out: it makes other methods worse");
}

void validate(const DeviceConfig& device, int workers) {
  const bool has_details = device.memory_budget || device.precision != DevicePrecision::float32 ||
                           device.layout != DeviceLayout::automatic || device.gds != GdsMode::automatic ||
                           !device.pin_memory;
  if (device.is_cpu() && has_details)
    throw usage_error(
        "--device-memory-budget, --device-precision, --device-layout, --gds and --no-pin-memory are for GPUs",
        "give --device cuda:0, or leave them out");
  if (!device.is_cpu() && workers > 1)
    throw usage_error("--workers is for the CPU; a GPU calibrates one sample at a time", "leave out --workers");
}

// Floats, and scales that are not the weight's type, are found for each block by itself, from its weights.
void check_float_blocks(const QuantizeOptions& options) {
  const auto& blocks = options.weights_only;
  const bool has_floats = is_float(options.config.weight_type);
  if (!has_floats && blocks.scale_type == ScaleType::as_weight) return;
  const std::string what = has_floats ? "--weight-type of floats" : "--scale-type";
  if (blocks.form == WeightForm::matmul_nbits)
    throw usage_error(fmt::format("MatMulNBits has integers with scales of the weight's type, and no {}", what),
                      "leave out --weights-form, or give --weights-form qdq");
  if (!has_floats && (blocks.scale_type == ScaleType::float8e4m3fn || blocks.bits == WeightBits::two))
    throw usage_error("there is no standard form of this --scale-type with integers of these --bits",
                      "give --scale-type float8e8m0 with --bits 4 or 8, or --weight-type float4e2m1");
  if (!has_floats && !options.config.weight_symmetric.value_or(true))
    throw usage_error("--scale-type float8e8m0 has no zero points", "leave out --weight-asymmetric");
  if (blocks.method == WeightMethod::gptq || blocks.method == WeightMethod::awq)
    throw usage_error(fmt::format("{} takes --weights-method nearest or search", what), "give one of them, or auto");
  if (blocks.max_size || options.accuracy.target)
    throw usage_error(fmt::format("{} chooses bits of integers, and {} leaves no choice",
                                  blocks.max_size ? "--max-size" : "--accuracy-target", what),
                      "leave out one of them");
  if (blocks.sparsity != WeightSparsity::none)
    throw usage_error(fmt::format("--sparsity does not go with {}", what), "leave out one of them");
  const bool only_float = std::all_of(blocks.node_bits.begin(), blocks.node_bits.end(),
                                      [](const auto& entry) { return entry.ends_with("=float"); });
  if (has_floats && !only_float)
    throw usage_error("--node-bits: bits are of integers, and --weight-type is a floating-point type",
                      "give NODE=float alone");
}

// What is not in blocks may become 16-bit floats.
void check_floats_of_blocks(const QuantizeOptions& options) {
  const auto type = options.config.float_type;
  if (type == FloatType::keep) return;
  if (type == FloatType::float32)
    throw usage_error("--weights-only leaves activations as they are", "leave out --float, or give --float 16");
  if (is_float(options.config.weight_type) || options.weights_only.scale_type != ScaleType::as_weight)
    throw usage_error("--weights-only with --float 16 or bf16 is for integers with scales of the weight's type",
                      "leave out --weight-type and --scale-type, or --float");
  if (options.accuracy.target)
    throw usage_error("--accuracy-target measures the model with weights in blocks in float32",
                      "leave out --float, or the target");
}

// What concerns activations, or is about products of integers, does not go with weights alone.
void check_weights_only(const QuantizeOptions& options) {
  const auto& blocks = options.weights_only;
  const auto& to = target(options.config);
  if (!to.is_ort_cpu)
    throw usage_error(fmt::format("--target {}: weights in blocks are written for ONNX Runtime's CPU, and nothing of "
                                  "--weights-only follows this target",
                                  to.name),
                      "leave out --target, or leave out --weights-only");
  if (tunes(options.finetune.rounding))
    throw usage_error("--finetune solves for int8 products; weights in blocks have methods of their own",
                      "give --weights-method instead");
  if (options.statistics)
    throw usage_error("--statistics are of activations, and --weights-only leaves these in float",
                      "give --calibration-data, or nothing");
  check_metric(options.accuracy);
  check_blocks_target(options);
  if (!options.device.is_cpu()) throw usage_error("--weights-only runs on the CPU", "leave out --device");
  if (options.prepared_output)
    throw usage_error("--prepared-output: --weights-only takes the float model as it is", "leave it out");
  if (options.allow_nonfinite)
    throw usage_error("--allow-nonfinite is about activations; weights in blocks have to be finite", "leave it out");
  if ((options.report || options.trace) && options.config.float_type != FloatType::keep)
    throw usage_error("--report and --trace: --weights-only with --float makes its result in two runs",
                      "leave them out; --profile and --json tell of both");
  if (blocks.method == WeightMethod::gptq && !has_samples(options))
    throw usage_error("--weights-method gptq needs samples", "give --calibration-data");
  if (blocks.method == WeightMethod::awq && !has_samples(options))
    throw usage_error("--weights-method awq needs samples", "give --calibration-data");
  validate(options.device, options.workers);
  check_float_blocks(options);
  check_floats_of_blocks(options);
  if (blocks.sparsity != WeightSparsity::none) {
    if (blocks.max_size)
      throw usage_error("--sparsity 2:4 and --max-size do not go together: zeros make no file smaller",
                        "give bits with --bits and --node-bits");
    if (!has_samples(options))
      throw usage_error("--sparsity 2:4 needs samples, by which it finds the weights that may go",
                        "give --calibration-data");
    if (blocks.method != WeightMethod::gptq && blocks.method != WeightMethod::automatic)
      throw usage_error("--sparsity 2:4 goes with --weights-method gptq or auto", "give one of them");
  }
  if (blocks.rotation == Rotation::automatic) {
    if (!has_samples(options))
      throw usage_error("--rotation auto needs samples, on which both ways are measured",
                        "give --calibration-data, or --rotation on");
    if (blocks.max_size || options.accuracy.target)
      throw usage_error("--rotation auto and a search for bits do not go together", "give --rotation on or off");
    if (options.config.weight_type == QuantType::float4e2m1 || blocks.scale_type == ScaleType::float8e8m0)
      throw usage_error("--rotation auto measures both ways, and ONNX Runtime's CPU does not run this format",
                        "give --rotation on or off");
  }
  if (blocks.form == WeightForm::matmul_nbits && blocks.block_size == BlockSize::channel)
    throw usage_error("MatMulNBits has scales for blocks of 16 to 256 weights, not for whole channels",
                      "give --block-size 256, or --weights-form qdq");
}

void check_dynamic(const QuantizeOptions& options) {
  if (options.config.weight_type != QuantType::int8 && options.config.weight_type != QuantType::uint8)
    throw usage_error("--activations dynamic has integer weights of 8 bits", "give --weight-type int8 or uint8");
  validate(options.config);
  if (!preset(options.config).quantizes)
    throw usage_error("--activations dynamic quantizes, and --preset none does not", "leave out one of them");
  if (writes_16_bits(options.config))
    throw usage_error("--activations dynamic finds scales in float32", "leave out --float, or give --float 32");
  validate(options.device, options.workers);
  if (tunes(options.finetune.rounding))
    throw usage_error("--finetune solves for products with activations from samples",
                      "leave out --activations dynamic");
}

void check_kv_cache(const QuantizeOptions& options) {
  const auto& cache = options.kv_cache;
  if (cache.type == KvCacheType::keep) {
    if (cache.per_channel || cache.scale_file)
      throw usage_error("--kv-cache-per-channel and --kv-cache-scales are about a cache with scales",
                        "give --kv-cache int8, int4 or fp8");
    return;
  }
  const bool is_alone = changes_cache_alone(options);
  if (!options.weights_only.enabled && !is_alone)
    throw usage_error("--kv-cache goes with --weights-only, or with --preset none for the cache alone",
                      "add one of them, and leave out --float beside --preset none");
  if (!has_samples(options))
    throw usage_error("--kv-cache needs samples, from which the scales follow", "give --calibration-data");
  if (cache.type == KvCacheType::float8e4m3fn && writes_16_bits(options.config))
    throw usage_error(
        "--kv-cache fp8 does not go with --float 16 and bf16: ONNX Runtime's CPU, which is asked for the "
        "types of the other values, has no attention with such a cache",
        "leave out --float, or give --kv-cache int8 or int4");
  if (options.accuracy.target)
    throw usage_error("--accuracy-target is about the bits of weights, and --kv-cache changes the results as well",
                      "leave out one of them");
  if (is_alone && !options.device.is_cpu()) throw usage_error("--kv-cache runs on the CPU", "leave out --device");
  if (is_alone && options.prepared_output)
    throw usage_error("--prepared-output: --kv-cache takes the float model as it is", "leave it out");
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
    if (member->set != nullptr) validate(of_member);
  }
  if (!any_16_bits) check_io_types(options.config);
}

void validate(const QuantizeOptions& options, Command command) {
  check_bounds(options, command);
  if (!options.family.empty()) return check_family(options);
  check_io_types(options.config);
  check_kv_cache(options);
  if (changes_cache_alone(options)) {
    validate(options.config);
    check_block_floats(options);
    return validate(options.device, options.workers);
  }
  if (options.weights_only.enabled) return check_weights_only(options);
  if (options.config.activations == Activations::dynamic) return check_dynamic(options);
  validate(options.config);
  check_floats(options.config, command);
  check_block_floats(options);
  if (command == kPlan && options.config.block_float != BlockFloat::none)
    throw usage_error("plan tells of runs that make integers, and --block-float makes none",
                      "leave out --block-float, or the target that asks for it");
  validate(options.config, options.method, options.overrides);
  validate(options.finetune);
  if (is_float(options.config.weight_type) && tunes(options.finetune.rounding))
    throw usage_error("--finetune looks for integers, and the weights become floats", "leave it out");
  if (options.finetune.update_scale && options.config.power_of_two_scale)
    throw usage_error("--update-scale finds scales that are no powers of two", "leave it out");
  validate(options.device, options.statistics ? 1 : options.workers);
  check_metric(options.accuracy);
  if (command == kPlan) return;
  check_samples(options);
  check_measuring(options);
}

void validate(const CalibrateOptions& options) {
  check_bounds(options, kCalibrate);
  check_io_types(options.config);
  check_floats(options.config, kCalibrate);
  if (options.most_common && !options.histograms)
    throw usage_error("--most-common needs histograms", "leave out --no-histogram");
  validate(options.device, options.workers);
}

void validate(const CompareOptions& options) { check_bounds(options, kCompare); }

void validate(const VerifyOptions& options) { check_bounds(options, kVerify); }

void validate(const BenchOptions& options) {
  check_bounds(options, kBench);
  if (options.models.empty()) throw usage_error("there is no model to time", "name one or more");
}

}  // namespace detent::config
