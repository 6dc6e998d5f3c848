// Which operators run faster in float than in integers, with the conversions between both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "detent/config.h"
#include "speed/kernels.h"

namespace detent::speed {

/// Times of a node; null: not known, and taken as none.
using TimesOf = std::function<const KernelTimes*(std::size_t node)>;

/// For OptimizeFor::accuracy, integers have to be so much faster.
inline constexpr double kAccuracyMargin = 1.1;

/// Of the constants that the node reads.
double weight_bytes(const TimedModel& subject, std::size_t node);

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
  double seconds_in_float = 0;     // with none
  double seconds_dynamic = 0;      // with scales that are found while the model runs; 0: not timed
  std::vector<double> added = {};  // by each node on integers, if it alone stayed in float as well; 0 for all others
  bool size_decides = false;       // all operators together take less than can be told
};

/// Of the nodes that could compute on integers, those that are better left in float. The choice is the
/// fastest of all, under the model that times add up: of nodes in their form, of a QuantizeLinear for each value that
/// goes from float to integers, and of a DequantizeLinear for each reader in float (the runtime gives each its own).
/// `candidates` has a flag for each node.
FasterInFloat faster_in_float(const TimedModel& subject, const std::vector<bool>& candidates, const TimesOf& times,
                              const SpeedGoal& goal);

/// FasterInFloat::added of the choice that leaves `in_float` (ascending) in float.
std::vector<double> added_in_float(const TimedModel& subject, const std::vector<bool>& candidates,
                                   const std::vector<std::size_t>& in_float, const TimesOf& times);

/// Minimum cuts of networks: the cheapest way to tell two sides apart. Dinic 1970, "Algorithm for solution of a problem
/// of maximum flow in networks with power estimation".
class MinCut {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 4;

  /// Vertices 0 to `vertices` - 1.
  explicit MinCut(std::size_t vertices) : arcs_of_(vertices) {}

  /// What it costs when `from` is on the source's side and `to` is not. 0 <= cost <= kNever.
  void add(std::size_t from, std::size_t to, std::int64_t cost);

  /// For each vertex whether it is on the source's side of a cut of least cost; of several, the one with the most
  /// vertices there. To be called once.
  std::vector<bool> source_side(std::size_t source, std::size_t sink);
  /// Of that cut.
  std::int64_t cost() const noexcept { return cost_; }
  /// Of any other, without what costs kNever: `side` says for each vertex whether it is on the source's side.
  std::int64_t cost_of(const std::vector<bool>& side) const;

 private:
  struct Arc {
    std::size_t to = 0;
    std::int64_t left = 0;  // what can still flow; the arc back is the next or the one before
  };
  bool measure_distances(std::size_t source, std::size_t sink);
  std::vector<bool> reaches(std::size_t sink) const;
  std::int64_t push(std::size_t source, std::size_t sink);

  std::vector<Arc> arcs_;
  std::vector<std::vector<std::size_t>> arcs_of_;
  std::vector<std::size_t> distance_, next_;
  std::int64_t cost_ = 0;  // what flows
};

}  // namespace detent::speed
