// What is left of the error of a front end that must be in integers.
#pragma once

#include <string>

#include "graph/index.h"
#include "remedies/draft.h"
#include "remedies/evaluator.h"
#include "remedies/workload.h"

namespace detent::remedies {

/// Names the nodes up to a logarithm, a division or a power whose integers, of 16 bits too, leave the results far from
/// the float model's, and tells how near they would be without. Empty where float is a way out, or where another part
/// of the model makes the error.
std::string front_end_left(const Draft& draft, Evaluator& evaluator, const graph::Index& index,
                           const Workload& workload);

}  // namespace detent::remedies
