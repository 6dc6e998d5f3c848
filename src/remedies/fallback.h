// Which products fall back to float or to activations of 16 bits, and what that costs.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/placement/placement.h"
#include "run/model/prepare.h"

namespace detent::remedies {

// Which products fall back to float or to activations of 16 bits: those that make most of the error for the fewest
// multiplications.

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
  double macs = 0;  // share of the model's, or of its time if that is more: what the choice costs
};

struct FallbackChoice {
  std::size_t node = 0;
  double macs = 0;     // as of a candidate
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

/// Where the multiplications of a model are.
struct Workload {
  /// The products in integers, each with its share of the multiplications, and tables: these have no multiplications
  /// to give up, but a cost for the choice, since it is the size of the model that grows. Where all operators are in
  /// integers, the others as well, which cost none.
  std::vector<Candidate> products;
  double others = 0;     // share of the multiplications that are not made on integers
  bool is_known = true;  // false: the sizes of some products depend on values, and these count as none
};

/// `types` have the shapes of the samples, where these are known. Nodes that no sample came to do not count.
Workload workload_of(const run::Prepared& prepared, const graph::Index& index, const graph::ValueTypes& types,
                     const quantization::Placement& placement, bool all_operators = false);

/// Share of the multiplications that LSTM layers with integer weights make.
double recurrent_macs(const run::Prepared& prepared, const graph::Index& index, const graph::ValueTypes& types,
                      const QuantConfig& config);

/// The multiplications of a candidate: none of a table.
double macs_of(const onnx::Model& model, const graph::Index& index, const Candidate& candidate);

/// Share of the multiplications of products that read an activation of 16 bits; what width they make costs none.
double macs_of_16_bits(const onnx::Model& model, const graph::Index& index, const Workload& workload,
                       const quantization::Placement& placement);

}  // namespace detent::remedies
