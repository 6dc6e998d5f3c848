// Factors for the inputs of a product that make its weights easier to round, from sums over samples alone.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "quantization/blocks/blocks.h"
#include "solve/algebra/kernels.h"
#include "solve/blocks/block_error.h"

namespace detent::solve {

struct InputScales {
  /// For each input k: W[k] is to be multiplied by it, and what makes the input divided by it. Empty: none helps.
  std::vector<float> factors;
  double exponent = 0;
  /// Sums of squared errors of the results, see column_errors(), with the factors and without.
  double error = 0;
  double error_before = 0;
};

/// The factors power[k]^(exponent / 2), power being the diagonal of the Gram matrix, for the exponent of 0, 0.1 … 1
/// that leaves the smallest error when the weights are rounded: AWQ (Lin et al. 2023, arXiv:2306.00978), with the exact
/// error of all samples instead of runs of the model, and with the whole power instead of the mean magnitude. Divided
/// by the root of the smallest times the largest, and within 1e-4 and 1e4.
///
/// `columns`: those of all products that read these inputs, or some of them. Rounding is nearest(), or with `search`
/// that of search() weighted by the power that is left. Memory: for each thread three rows of kColumnsTogether columns.
InputScales best_input_scales(const Gram& gram, std::span<const float> columns, const quantization::BlockFormat& format,
                              bool search, const Kernels& kernels, std::size_t threads);

}  // namespace detent::solve
