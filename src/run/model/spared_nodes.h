// Nodes that stay in float because of where they stand: bodies that are not observed, joins of unequal parts, small
// results.
#pragma once

#include <string>
#include <vector>

#include "calibration/statistics.h"
#include "detent/quantize.h"
#include "quantization/assignment.h"
#include "run/model/prepare.h"

namespace detent::run {

/// Leaves in float all nodes of bodies (onnx/bodies.h) in which values were observed but none has a range, by
/// InFloat::unseen; gives back a note for each.
std::vector<std::string> leave_unseen_bodies(Prepared& prepared, const quantization::Placement& placement,
                                             const quantization::ActivationRanges& ranges);

/// Leaves in float, in the same way, bodies of Scan that the runtime would not run with observers in them
/// (graph::state_scan_ranks()).
std::vector<std::string> leave_scans_of_unknown_rank(Prepared& prepared);

// Values of very different size in one: boxes of hundreds of pixels beside scores up to 1. One scale for all of them
// would make the small ones 0.

/// Takes out of its type each Concat that would leave one of its inputs only a few steps, where its parts go their own
/// ways behind it or out of the model, and all that only moves what it makes: to 16 bits where the fallback gives them
/// and they suffice, else to float. Returns a note for each.
std::vector<std::string> widen_unequal_concats(Prepared& prepared, const quantization::Placement& placement,
                                               const calibration::Statistics& statistics,
                                               const quantization::Proposals& proposals,
                                               const QuantizeOptions& options);

// Results that a target's fixed grid is too coarse for: those of a Tanh or Sigmoid of small numbers.

/// Leaves out each Tanh whose inputs are so small that its results differ less from them than the grid that the target
/// fixes for it rounds; and makes Exp, which has no such grid, of a Sigmoid whose results would all be rounded to 0,
/// and are less than half a step of their own 8 bits from Exp's. Integers of the input go no farther than its range, so
/// that this holds for whatever the model reads. Gives what comes out the range that follows, and returns a note for
/// each; where there is one, the placement is not that of the model any more.
std::vector<std::string> free_small_results(Prepared& prepared, const quantization::Placement& placement,
                                            quantization::Proposals& proposals, const QuantConfig& config);

}  // namespace detent::run
