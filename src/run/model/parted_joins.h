// Values of very different size in one: boxes of hundreds of pixels beside scores up to 1. One scale for all of them
// would make the small ones 0.
#pragma once

#include <string>
#include <vector>

#include "calibration/statistics.h"
#include "detent/quantize.h"
#include "quantization/assignment.h"
#include "run/model/prepare.h"

namespace detent::run {

/// Takes out of its type each Concat that would leave one of its inputs only a few steps, where its parts go their own
/// ways behind it or out of the model, and all that only moves what it makes: to 16 bits where the fallback gives them
/// and they suffice, else to float. Returns a note for each.
std::vector<std::string> widen_unequal_concats(Prepared& prepared, const quantization::Placement& placement,
                                               const calibration::Statistics& statistics,
                                               const quantization::Proposals& proposals,
                                               const QuantizeOptions& options);

}  // namespace detent::run
