// The first stages and the last ones: the model is opened and made ready; the file is written, proved, timed and
// compared.
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

/// Ranks other than 0 of a run of several processes end here.
void leave_rest_to_first(Run& run);

/// Writes Run::model; for targets with numbers of their own also looks whether it is of use.
void write_result(Run& run);

/// Whether ONNX Runtime's CPU can run what was written, on these samples; a note says why not.
void check_running(Run& run);
/// Beside the float model.
void time_result(Run& run);
/// Integers on more samples than they were chosen by, where that takes little time.
void compare_on_more(Run& run);
void compare_result(Run& run);

/// Of integers whose rest has become 16-bit floats: what the CPU makes of them.
void tell_of_lowered(Run& run);

/// Writes the report and the trace that were asked for.
QuantizeResult finish(Run& run);

}  // namespace detent::pipeline
