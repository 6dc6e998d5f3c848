// The stages of products of integers with scales from samples.
#pragma once

#include <memory>
#include <optional>

#include "data/sample.h"
#include "detent/quantize.h"
#include "pipeline/run.h"
#include "remedies/evaluator.h"

namespace detent::pipeline {

/// What these stages hand on.
struct IntegerWork {
  std::unique_ptr<data::SampleSource> source;  // null: none
  remedies::Draft draft;
  std::optional<remedies::Evaluator> evaluator;
  bool measured = false;  // what rounding does to the results

  /// As it was when the remedies had ended, for leave_inexact_in_float(); unset without measuring.
  struct Improved {
    remedies::Draft draft;
    QuantizeResult result;
    std::size_t notes_before;  // of QuantizeResult::notes, those from before the remedies
  };
  std::optional<Improved> improved;
  bool measures_if_needed = true;  // false: the memory budget leaves no room for it
  bool tunes_if_needed = true;     // the same
  bool stores_if_harmless = true;  // the same
  bool is_dynamic = false;         // what is written has no fixed scales, see try_other_forms()
  double lost_db = 0;              // by the deployed model beside what was measured to choose it
};

/// Where pairs go, and what the weights need.
void place_integers(Run& run);
/// Leaves in float what this machine runs faster so.
void choose_by_speed(Run& run);
/// Leaves out what was not asked for and would not keep to the memory budget.
void keep_to_budget(Run& run);
/// For a report: what the layers of the model compute.
void describe_layers(Run& run);
/// Observes the samples, or reads saved statistics, and proposes ranges.
void calibrate(Run& run);
/// Measures what each rounding does to the results, and applies the remedies.
void improve(Run& run);
/// From what was chosen to the model as it will be written, weights tuned.
void emit_integers(Run& run);
void write_integers(Run& run);
/// Layers that the runtime computes otherwise than their integers say stay in float, where that helps and is allowed.
void leave_inexact_in_float(Run& run);
/// The same for all nodes, whatever it does to the results.
void leave_all_in_float(Run& run);
/// For a report: a few samples tell which layers lose most.
void compare_layers(Run& run);

/// The share of the model's multiplications that ONNX Runtime's CPU computes on integers: it makes floats of some
/// first.
void count_integers(Run& run, const onnx::Model& model);

}  // namespace detent::pipeline
