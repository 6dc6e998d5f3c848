// All remedies, in the order in which they are applied.
#pragma once

#include <memory>

#include "config/derived.h"
#include "config/targets.h"
#include "detent/quantize.h"
#include "quantization/formats.h"
#include "remedies/remedy.h"

namespace detent::remedies {

std::unique_ptr<Remedy> gates();
std::unique_ptr<Remedy> recurrent();
std::unique_ptr<Remedy> equalization();
std::unique_ptr<Remedy> range_choice();
std::unique_ptr<Remedy> fallback();
std::unique_ptr<Remedy> weight_tuning();
std::unique_ptr<Remedy> stored_products();

struct Row {
  const char* name;
  bool (*is_wanted)(const QuantizeOptions& options);
  bool needs_sensitivities;  // the error of each value
  std::unique_ptr<Remedy> (*make)();
};

/// What runs all operators on integers has no float that something could fall back to, unless a target asks for it, and
/// nodes keep the formats that were given to them.
inline bool may_fall_back(const QuantizeOptions& options) {
  if (options.config.formats_given) return false;
  return options.accuracy.target || options.accuracy.fallback != AccuracyFallback::float32 ||
         !config::target(options.config).all_operators;
}

/// Those that decide what computes on integers at all.
inline constexpr Row kOfForms[] = {{"recurrent layers", config::applies_remedies, false, recurrent},
                                   {"gates",
                                    [](const auto& o) {
                                      return config::applies_remedies(o) && config::writes_hard_sigmoids(o.config) &&
                                             !quantization::is_16_bit(o.config.activation_type);
                                    },
                                    false, gates}};

/// Those that change the assignment.
inline constexpr Row kOfAssignments[] = {
    {"equalization",
     [](const auto& o) { return config::applies_remedies(o) && o.accuracy.equalize == EqualizeMode::automatic; }, false,
     equalization},
    {"range choice", [](const auto& o) { return o.accuracy.sensitivity == SensitivityMode::automatic; }, true,
     range_choice},
    {"fallback", [](const auto& o) { return config::applies_remedies(o) && may_fall_back(o); }, true, fallback},
};

/// Those that change the emitted model.
inline constexpr Row kOfEmittedModels[] = {
    {"weight tuning", [](const auto& o) { return o.finetune.rounding == WeightSolver::automatic; }, false,
     weight_tuning},
};

/// Those that change how it is written.
inline constexpr Row kOfWrittenModels[] = {
    {"weights of products in float", config::tries_stored_weights, false, stored_products},
};

}  // namespace detent::remedies
