// What is done to a draft after calibration: remedies in their order, each kept only where it is measured to help.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/presets.h"
#include "config/targets.h"
#include "detent/quantize.h"
#include "graph/index.h"
#include "quantization/formats.h"
#include "remedies/evaluator.h"

namespace detent::remedies {

/// A way to make a quantized model better. A remedy is a class behind this interface and a row in
/// the table below.
class Remedy {
 public:
  Remedy() = default;
  Remedy(const Remedy&) = delete;
  Remedy& operator=(const Remedy&) = delete;
  virtual ~Remedy() = default;

  /// Looks for something better than the draft; false where there is nothing.
  virtual bool propose(const Draft& draft, Evaluator& evaluator) = 0;
  /// Whether the proposal as a whole is better, measured on samples from all over the set: what helps each value alone
  /// on a few samples may not help all of them on others.
  virtual bool is_better(const Draft& draft, Evaluator& evaluator) = 0;
  /// Puts the proposal in the draft's place, and reports it in `draft.result`.
  virtual void keep(Draft& draft, Evaluator& evaluator) = 0;
  /// Reports what is worth telling whether the proposal was kept or not.
  virtual void report(AccuracyResult& result) const { static_cast<void>(result); }
};

// All remedies, in the order in which they are applied.

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
inline constexpr Row kFormRemedies[] = {{"recurrent layers", config::applies_remedies, false, recurrent},
                                        {"SiLU and HardSwish",
                                         [](const auto& o) {
                                           return config::applies_remedies(o) &&
                                                  config::writes_hard_sigmoids(o.config) &&
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
    {"weight tuning", [](const auto& o) { return o.finetune.solver == WeightSolver::automatic; }, false, weight_tuning},
};

/// Those that change how it is written.
inline constexpr Row kOfWrittenModels[] = {
    {"weights of products in float", config::tries_stored_weights, false, stored_products},
};

/// Lets one remedy propose, judges the proposal, and keeps it where it is better. Whether it was kept.
bool apply(Remedy& remedy, Draft& draft, Evaluator& evaluator);

/// Applies the remedies that change the assignment, as far as the options ask for them, and fills `draft.result`: what
/// was done, how near the results are, and what makes the error that is left. Throws bad_input when the accuracy
/// command fails or prints no number, and for a target out of reach; resource when the budget cannot be met.
void improve(Draft& draft, Evaluator& evaluator);

/// The same for remedies that change the emitted model.
void improve_emitted(Draft& draft, Evaluator& evaluator);

/// The same for remedies that change how it is written, behind all others.
void improve_written(Draft& draft, Evaluator& evaluator);

/// Leaves nodes in float, by Node::id(), that the runtime computes otherwise than their integers say, and fills
/// `draft.result` anew.
void leave_in_float(Draft& draft, Evaluator& evaluator, const std::vector<std::string>& nodes);

/// Of an emitted model whose weights were tuned as asked, which may do less well than those that the target was reached
/// with: measures its score anew. Throws bad_input below the target.
void check_target(Draft& draft, Evaluator& evaluator);

/// Values with their errors, worst first.
std::vector<std::pair<std::string, double>> by_error(const Sensitivities& sensitivities);

/// The node that makes a value, or of a weight the one that reads it; empty: neither.
std::string node_of(const onnx::Model& model, const graph::Index& index, const std::string& value);

/// A note about results that are far although nothing was asked for, and what helps; empty where there is none.
std::string note_on_remaining_error(const Draft& draft, const QuantizeOptions& options);

}  // namespace detent::remedies
