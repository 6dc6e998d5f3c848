// Where the multiplications of a model are.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "graph/index.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "quantization/placement/placement.h"
#include "remedies/fallback_choice.h"
#include "run/model/prepare.h"

namespace detent::remedies {

struct Workload {
  /// The products in integers, each with its share of the multiplications, and tables: these have no multiplications
  /// to give up, but a cost for the choice, since it is the size of the model that grows. Where all operators are in
  /// integers, the others as well, which cost none.
  std::vector<Candidate> products;
  double others = 0;     // share of the multiplications that are not made on integers
  bool is_known = true;  // false: the sizes of some products depend on values, and these count as none
};

/// `types` have the shapes of the samples, where these are known. Nodes that are `unseen` (Prepared::unseen) do not
/// count.
Workload workload_of(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                     const quantization::Placement& placement, const std::set<std::string>& unseen = {},
                     bool all_operators = false);

/// Share of the multiplications that LSTM layers with integer weights make.
double recurrent_macs(const run::Prepared& prepared, const graph::Index& index, const graph::ValueTypes& types,
                      const QuantConfig& config);

/// The multiplications of a candidate: none of a table.
double macs_of(const onnx::Model& model, const graph::Index& index, const Candidate& candidate);

/// Share of the multiplications of products that read an activation of 16 bits; what width they make costs none.
double macs_of_16_bits(const onnx::Model& model, const graph::Index& index, const Workload& workload,
                       const quantization::Placement& placement);

}  // namespace detent::remedies
