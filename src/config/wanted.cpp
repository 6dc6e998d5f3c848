#include "config/wanted.h"

#include "config/targets.h"

namespace detent::config {

bool has_samples(const QuantizeOptions& options) { return options.calibration_data || options.samples != nullptr; }

bool reads_twice(const QuantizeOptions& options) { return options.samples == nullptr || options.samples->can_rewind(); }

bool may_measure_accuracy(const QuantizeOptions& options) {
  const auto& wanted = options.accuracy;
  return target(options.config).measures_accuracy && (wanted.sensitivity != SensitivityMode::off || wanted.target);
}

bool may_tune(const QuantizeOptions& options) {
  const auto& accuracy = options.accuracy;
  return options.finetune.rounding == Rounding::automatic && may_measure_accuracy(options) &&
         accuracy.sensitivity == SensitivityMode::automatic && !accuracy.target && has_samples(options) &&
         reads_twice(options);
}

}  // namespace detent::config
