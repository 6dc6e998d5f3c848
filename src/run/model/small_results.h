// Results that a target's fixed grid is too coarse for: those of a Tanh or Sigmoid of small numbers.
#pragma once

#include <string>
#include <vector>

#include "quantization/assignment.h"
#include "run/model/prepare.h"

namespace detent::run {

/// Leaves out each Tanh whose inputs are so small that its results differ less from them than the grid that the target
/// fixes for it rounds; and makes Exp, which has no such grid, of a Sigmoid whose results would all be rounded to 0,
/// and are less than half a step of their own 8 bits from Exp's. Integers of the input go no farther than its range, so
/// that this holds for whatever the model reads. Gives what comes out the range that follows, and returns a note for
/// each; where there is one, the placement is not that of the model any more.
std::vector<std::string> free_small_results(Prepared& prepared, const quantization::Placement& placement,
                                            quantization::Proposals& proposals, const QuantConfig& config);

}  // namespace detent::run
