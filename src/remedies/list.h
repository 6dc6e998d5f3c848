// All remedies, in the order in which they are applied.
#pragma once

#include <memory>

#include "detent/quantize.h"
#include "remedies/remedy.h"

namespace detent::remedies {

std::unique_ptr<Remedy> gates();
std::unique_ptr<Remedy> equalization();
std::unique_ptr<Remedy> range_choice();
std::unique_ptr<Remedy> fallback();
std::unique_ptr<Remedy> weight_tuning();

struct Row {
  const char* name;
  bool (*is_wanted)(const QuantizeOptions& options);
  bool needs_sensitivities;  // the error of each value
  std::unique_ptr<Remedy> (*make)();
};

/// Whether what was measured is acted on.
inline bool acts(const QuantizeOptions& options) {
  return options.accuracy.target || options.accuracy.sensitivity == SensitivityMode::automatic;
}

/// Those that make the result faster, at a small loss.
inline constexpr Row kOfForms[] = {{"gates", acts, false, gates}};

/// Those that change the assignment.
inline constexpr Row kOfAssignments[] = {
    {"equalization", [](const auto& o) { return acts(o) && o.accuracy.equalize == EqualizeMode::automatic; }, false,
     equalization},
    {"range choice", [](const auto& o) { return o.accuracy.sensitivity == SensitivityMode::automatic; }, true,
     range_choice},
    {"fallback", acts, true, fallback},
};

/// Those that change the emitted model.
inline constexpr Row kOfEmittedModels[] = {
    {"weight tuning", [](const auto& o) { return o.finetune.rounding == Rounding::automatic; }, false, weight_tuning},
};

}  // namespace detent::remedies
