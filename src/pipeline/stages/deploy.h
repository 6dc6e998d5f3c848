// The last stages: the file is written, proved, timed and compared as its users will run it.
#pragma once

#include "pipeline/run.h"

namespace detent::pipeline {

/// Ranks other than 0 of a run of several processes end here.
void leave_rest_to_first(Run& run);

/// Writes Run::model; for targets with numbers of their own also looks whether it is of use.
void write_result(Run& run);

/// Whether ONNX Runtime's CPU can run what was written, on these samples; a note says why not.
void check_running(Run& run);
/// Beside the float model.
void time_result(Run& run);
void compare_result(Run& run);

/// Of integers whose rest has become 16-bit floats: what the CPU makes of them.
void tell_of_lowered(Run& run);

/// Writes the report and the trace that were asked for.
QuantizeResult finish(Run& run);

}  // namespace detent::pipeline
