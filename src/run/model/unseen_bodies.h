// Bodies whose values cannot be observed.
#pragma once

#include <string>
#include <vector>

#include "quantization/assignment.h"
#include "run/model/prepare.h"

namespace detent::run {

/// Leaves in float all nodes of bodies (onnx/bodies.h) in which values were observed but none has a range, by
/// Prepared::unseen; gives back a note for each.
std::vector<std::string> leave_unseen_bodies(Prepared& prepared, const quantization::Placement& placement,
                                             const quantization::ActivationRanges& ranges);

/// Leaves in float, in the same way, bodies of Scan that the runtime would not run with observers in them
/// (graph::state_scan_ranks()).
std::vector<std::string> leave_scans_of_unknown_rank(Prepared& prepared);

}  // namespace detent::run
