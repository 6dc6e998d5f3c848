// Which operators run faster in float than in integers, with the conversions between both.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "detent/config.h"
#include "speed/kernel_table.h"
#include "speed/kernels.h"

namespace detent::speed {

/// Times of a node; null: not known, and taken as none.
using TimesOf = std::function<const KernelTimes*(std::size_t node)>;

/// Of the nodes that could compute on integers, those that are better left in float, ascending. The choice is the
/// fastest of all, under the model that times add up: of nodes in their form, of a QuantizeLinear for each value that
/// goes from float to integers, and of a DequantizeLinear for each reader in float (the runtime gives each its own).
/// `candidates` has a flag for each node.
std::vector<std::size_t> faster_in_float(const Subject& subject, const std::vector<bool>& candidates,
                                         const TimesOf& times, OptimizeFor optimize_for);

}  // namespace detent::speed
