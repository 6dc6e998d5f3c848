#include "config/derived.h"

#include "config/presets.h"
#include "config/targets.h"

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

Result result_of(const QuantizeOptions& options) {
  if (!options.node_formats.empty()) return kMixed;
  if (options.weights_only.enabled) return kBlocks;
  if (changes_cache_alone(options)) return kCache;
  if (options.config.block_float != BlockFloat::none) return kBlockFloats;
  if (preset(options.config).quantizes)
    return options.config.activations == Activations::dynamic ? kDynamic : kIntegers;
  return options.config.float_type == FloatType::float32 ? kFloat32 : kFloat16;
}

bool chooses_by_speed(const QuantizeOptions& options) {
  const auto& config = options.config;
  return preset(config).chooses_by_speed && target(config).is_this_machine && !writes_16_bits(config) &&
         options.optimize_for != OptimizeFor::size && config.op_types.empty() && config.nodes.empty() &&
         has_8_bits(config.activation_type) && has_8_bits(config.weight_type) && !config.power_of_two_scale &&
         options.accuracy.fallback == AccuracyFallback::float32;
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

bool stores_weights(const QuantConfig& config) {
  return preset(config).measures_accuracy && target(config).is_ort_cpu && !writes_16_bits(config) &&
         !config.formats_given && has_8_bits(config.activation_type) && has_8_bits(config.weight_type);
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
  return options.finetune.rounding == WeightSolver::automatic && may_measure_accuracy(options) &&
         accuracy.sensitivity == SensitivityMode::automatic && !accuracy.target && has_samples(options);
}

}  // namespace detent::config
