// Which products fall back to float or to activations of 16 bits: those that make most of the error for the fewest
// multiplications.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "quantization/placement/placement.h"

namespace detent::remedies {

/// An error at each point of the results, as a share of the energy there.
using PointErrors = std::vector<double>;

/// What each mark alone adds to the errors. To first order the errors of marks are independent of each other and add
/// up.
using MarkErrors = std::unordered_map<std::string, PointErrors>;

/// Sum over the marks of a placement; marks that were not measured, and those of 16 bits, count as exact.
PointErrors predicted_error(const quantization::Placement& placement, const MarkErrors& errors);

/// The largest share that goes of the `whole` of a point, of those points where `before` is above `enough`: what is
/// removed from one output does not count less for others that have no need of it.
double removed_share(const PointErrors& before, const PointErrors& after, const PointErrors& whole, double enough);

struct Candidate {
  std::size_t node = 0;
  double macs = 0;  // share of the model's
};

struct FallbackChoice {
  std::size_t node = 0;
  double macs = 0;     // share of the model's
  double removed = 0;  // share of the error of the whole that goes with it, see removed_share()
};

struct ChoiceLimits {
  double macs = 0.1;          // share of the multiplications that may fall back
  double worth_removing = 0;  // a choice must take away this share of the error of the whole
  double ratio = 0;           // and so many times its share of the multiplications
  double error = 0;           // enough: no further choice where no point is above this error
};

/// Places the pairs when these nodes fall back.
using Place = std::function<quantization::Placement(const std::vector<std::size_t>& nodes)>;

/// Greedy: each time the candidate that takes away most error for each multiplication, as long as the limits allow. A
/// product that small ones have left no room for is tried as the first choice: the better of both counts.
std::vector<FallbackChoice> choose_fallbacks(const std::vector<Candidate>& candidates, const MarkErrors& errors,
                                             const Place& place, const ChoiceLimits& limits);

}  // namespace detent::remedies
