// What a run of quantize makes: its options, resolved once before anything is done. Nothing changes it afterwards.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "config/option.h"
#include "config/targets.h"
#include "detent/quantize.h"

namespace detent::pipeline {

/// Results that change the type of floats alone.
constexpr unsigned kFloats = config::kFloat16 | config::kFloat32;

struct Recipe {
  /// Valid, for one model file, with a name of a target and with the floating-point type that the result has.
  QuantizeOptions options;
  config::Result result = config::kIntegers;
  const config::Target* target = nullptr;
  bool has_samples = false;
  bool reports = false;  // an HTML report or a trace is asked for
  /// What integers or weights in blocks leave in float32 becomes 16-bit floats in the end, scales included.
  bool lowers_rest = false;
  /// Nodes by Node::id() of a model of 16-bit floats that compute in float32, and stay so.
  std::unordered_set<std::string> in_float32 = {};
  std::vector<std::string> notes = {};
};

/// Whether the deployed result is timed: the runtime's CPU has no kernels of 16-bit floats and block floats.
inline bool is_timed(const Recipe& recipe) {
  return recipe.options.bench && !recipe.lowers_rest && (recipe.result & (kFloats | config::kBlockFloats)) == 0;
}

/// What follows from the options alone.
Recipe recipe_of_options(const QuantizeOptions& options);

/// A model of 16-bit floats whose products become integers keeps its type, unless the options say otherwise: for that
/// it is read. Throws bad_input where it has several such types, and what loading it throws.
Recipe recipe_of(const QuantizeOptions& options, config::Command command = config::kQuantize);

}  // namespace detent::pipeline
