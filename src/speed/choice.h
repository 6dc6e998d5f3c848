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

struct SpeedGoal {
  OptimizeFor optimize_for = OptimizeFor::latency;
  /// What all weights together are worth as integers, in percent of the model's time in float. Not for accuracy.
  double size_worth = 2;
};

struct FasterInFloat {
  std::vector<std::size_t> nodes;  // ascending
  /// Predicted times of one sample, of the timed operators and the conversions between them, one thread.
  double seconds = 0;              // with these nodes in float
  double seconds_on_integers = 0;  // with all candidates on integers
};

/// Of the nodes that could compute on integers, those that are better left in float. The choice is the
/// fastest of all, under the model that times add up: of nodes in their form, of a QuantizeLinear for each value that
/// goes from float to integers, and of a DequantizeLinear for each reader in float (the runtime gives each its own).
/// `candidates` has a flag for each node.
FasterInFloat faster_in_float(const TimedModel& subject, const std::vector<bool>& candidates, const TimesOf& times,
                              const SpeedGoal& goal);

}  // namespace detent::speed
