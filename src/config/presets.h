// Presets: how much is measured and done, as data. A new one is one more row in presets.cpp. Where the model runs is
// the target's (targets.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option.h"
#include "detent/config.h"
#include "detent/quantize.h"

namespace detent::config {

struct Option;

struct Preset {
  std::string_view name;
  std::string_view help;
  /// Types, symmetry, granularity, grids and operator lists that its options start from.
  QuantConfig format = {};
  MethodConfig method = {};
  /// Models of an older opset are upgraded to at least this one.
  std::int64_t opset = 10;
  /// Whether anything becomes integers.
  bool quantizes = true;
  /// What stays in float: all but products, convolutions and what hands integers from one to the next.
  bool integer_chains_only = false;
  /// Whether the error of each rounding is measured and acted on.
  bool measures_accuracy = false;
  /// Whether what is faster in float on this machine stays in float.
  bool chooses_by_speed = false;
  /// Whether ranges weigh errors by what the readers of a value make of them.
  bool consumer_functions = false;
  /// Whether nodes are added that keep the runtime from fusing across the borders of float parts.
  bool barriers = false;
  /// Whether channels of zeros get the zero point of the others, which the runtime's fast kernels want.
  bool equal_zero_points = false;
  /// Whether the float model is rewritten into forms that the runtime runs fast once it is quantized.
  bool fuses_for_runtime = false;
};

const std::vector<Preset>& presets();
/// The names, each with what it means.
std::vector<std::pair<std::string, std::string>> preset_names();

/// Throws usage when there is none of this name.
const Preset& preset(std::string_view name);
inline const Preset& preset(const QuantConfig& config) { return preset(config.preset); }

/// Gives every option that the user did not give (by the path of its member) the value of the preset that
/// QuantConfig::preset names, and then of the target that QuantConfig::target names. A method that is given is the only
/// one. With a 16-bit float type that is given, the preset is `none` unless it is given too. Throws usage for an option
/// that is given and has no meaning for what the run makes (Option::results), or that contradicts the target.
/// calibrate() takes QuantizeOptions::config alone; commands that neither quantize nor calibrate have no preset.
void resolve(Options& options, const std::vector<std::string_view>& given, Command command = kQuantize);

/// The option as it was given: by the opposite name where it is a switch that is off.
std::string name_as_given(const Option& option, const QuantizeOptions& options);

// What options ask for, as far as several of them decide it together.

/// Samples in files or from a stream.
bool has_samples(const QuantizeOptions& options);

/// Whether nothing becomes of the model but another type of its cache.
bool changes_cache_alone(const QuantizeOptions& options);

/// Whether the format of each node is searched, for a latency or for a size of more than weights alone.
bool searches_formats(const QuantizeOptions& options);

/// Whether operators that are faster in float stay so. Only where this machine may be the target: formats of 4 and 16
/// bits and power-of-two scales are for others, and what the user names is quantized as named.
bool chooses_by_speed(const QuantizeOptions& options);

/// Whether weights of 8 bits alone may be written where all integers would make the file larger.
bool chooses_by_size(const QuantizeOptions& options);

/// Whether what is not quantized, and the scales of what is, become floats of 16 bits.
bool writes_16_bits(const QuantConfig& config);

/// Whether nodes are added that keep ONNX Runtime from fusing across the borders of float parts.
bool makes_barriers(const QuantConfig& config);

/// Whether gates may be written as HardSigmoid, which ONNX Runtime's CPU runs fast on integers.
bool writes_hard_sigmoids(const QuantConfig& config);

/// Whether LSTM layers that nobody named are tried on integers: where that is measured, and for ONNX Runtime's CPU
/// alone.
bool tries_recurrent(const QuantConfig& config);

/// Whether the error of each rounding is measured, as long as there are samples.
bool may_measure_accuracy(const QuantizeOptions& options);

/// Whether what was measured is acted on.
bool applies_remedies(const QuantizeOptions& options);

/// Whether weights as of stores_weights() are tried, and kept where that is measured to do no harm.
bool tries_stored_weights(const QuantizeOptions& options);

/// Whether WeightSolver::automatic may lead to gptq: accuracy is measured and acted on, and the samples can be read
/// again.
bool may_tune(const QuantizeOptions& options);

}  // namespace detent::config
