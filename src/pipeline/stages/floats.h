// The stages of 16-bit floats: of a float model, or of what integers and weights in blocks leave in float32.
#pragma once

#include <optional>

#include "calibration/statistics.h"
#include "detent/config.h"
#include "pipeline/run.h"
#include "quantization/floats/float_placement.h"
#include "run/files/run_directory.h"

namespace detent::pipeline {

/// What these stages hand on.
struct FloatWork {
  QuantConfig config;  // of the conversion alone
  bool has_samples = false;
  const calibration::Statistics* known = nullptr;  // extremes of the model's values
  std::optional<calibration::Statistics> statistics;
  quantization::FloatFacts facts;
  std::optional<run::RunDirectory> directory;  // unset: the run's
};

/// Hands the model with integers or blocks on, through a file, so that no more of it is in memory than of any other
/// model.
void lower_rest(Run& run);

/// Which nodes may have 16 bits.
void select_floats(Run& run);
/// The extremes of all values on the samples, unless they are known, and shapes as static as the first sample has them.
void observe_floats(Run& run);
/// Run::model in the type that was asked for.
void convert_floats(Run& run);

}  // namespace detent::pipeline
