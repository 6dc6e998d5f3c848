// What remedies work on: a float model and what is to become of it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "detent/quantize.h"
#include "quantization/assignment.h"
#include "quantization/emit/emitted.h"
#include "remedies/fallback_choice.h"
#include "run/model/prepare.h"

namespace detent::remedies {

/// What each quantized value alone does to the results when it is rounded.
struct Sensitivities {
  std::vector<std::string> values;  // in the order of the placement that they were measured under
  MarkErrors errors;
  bool each_alone = true;   // false: in groups of neighbours, see Evaluator::measure()
  std::size_t samples = 1;  // measured on so many
};

struct Draft {
  run::Prepared prepared;
  quantization::Proposals proposals;
  quantization::Assignment assignment;  // of `proposals`
  /// Nodes whose products fall back, by position; `assignment` has them so.
  std::vector<std::size_t> fallbacks;
  std::optional<Sensitivities> sensitivities;  // unset: not measured for this model yet
  std::optional<quantization::Emitted> emitted;
  bool is_cut = false;  // of these nodes only some become integers in the end: no weight makes up for another's error
  std::vector<LayerTuning> layers;  // of fine-tuning, whose integers `emitted` has
  AccuracyResult result;            // what was measured, and what remedies did
  double before_db = 0;             // as AccuracyResult::sqnr_db, before any remedy
  double worst_error = 0;           // at the points that decisions look at
  std::vector<std::string> notes;
  /// Products that make most of the error that is left, worst first: shares of that error.
  std::vector<FallbackNode> worst_left;
  std::string front_end_left;  // what front_end_left() said

  /// Assigns anew, after proposals, placement or model have changed.
  void assign(quantization::Placement placement, const QuantConfig& config) {
    assignment = quantization::assign(prepared.model, std::move(placement), proposals, config);
  }
};

}  // namespace detent::remedies
