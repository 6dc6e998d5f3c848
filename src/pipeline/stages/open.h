// The first stages: the model as it was given, and made ready.
#pragma once

#include "pipeline/run.h"

namespace detent::pipeline {

/// Reads the model into Run::model.
void read_model(Run& run);
/// Checks that all outputs can be written, and makes the run's directory. What cannot be is better known here than
/// after hours of work.
void claim_output(Run& run);

/// Run::model for results that change weights or the cache alone: unfolded, with constants as initializers, nodes in
/// order, and the shapes that were asked for.
void canonicalize(Run& run);

/// Makes Run::prepared of Run::model by the graph rewrites that the format and the target ask for.
void prepare(Run& run);

/// Reads the samples before any work, for results that need none to be made: throws bad_input where one does not fit.
void check_samples(Run& run);

/// Where the user asked for the model as it was prepared.
void write_prepared(Run& run);

/// What calibration counts beside extremes.
bool needs_histograms(const Recipe& recipe);
bool needs_votes(const Recipe& recipe);

}  // namespace detent::pipeline
