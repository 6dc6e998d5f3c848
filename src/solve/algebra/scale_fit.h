// Scales that suit the integers that were found, in closed form: AdaQuant (Hubara et al. 2020, arXiv:2006.10518) trains
// them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "solve/algebra/kernels.h"
#include "solve/layers/geometry.h"
#include "solve/layers/problem.h"
#include "solve/layers/samples.h"
#include "solve/layers/solver.h"

namespace detent::solve {

/// Sums over positions of an output y without its bias, and of what y is to be, t: the target less the bias.
struct RowSums {
  double y = 0, t = 0, yt = 0, tt = 0;
};
struct OutputSums {
  std::vector<RowSums> rows;
  std::uint64_t positions = 0;
};

OutputSums sums_of_outputs_and_targets(const QuantizedWeights& weights, const GramForm& form, const Solution& solution,
                                       std::size_t threads);
OutputSums sums_of_outputs_and_targets(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                       const Solution& solution, LayerSamples& samples, const Kernels& kernels,
                                       const SolveControl& control);

/// Multiplies each scale by the factor that leaves the error of the rows that share it without a part that follows the
/// targets: sum of (y − t) t = 0. With `best_bias` the bias moves along, and sums are about means. A factor that is not
/// within 1/2 and 2 is none.
///
/// The factor of least squares would make outputs smaller by the share of error in them, layer after layer.
void fit_scales(const OutputSums& sums, bool best_bias, QuantizedWeights& weights, Solution& solution);

}  // namespace detent::solve
