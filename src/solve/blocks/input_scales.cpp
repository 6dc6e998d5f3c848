#include "solve/blocks/input_scales.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "quantization/blocks/block_search.h"
#include "solve/algebra/vector_sums.h"

namespace detent::solve {
namespace {

using quantization::BlockFormat;

std::vector<float> factors_of(const Gram& gram, double exponent) {
  constexpr float kMost = 1e4F;
  double trace = 0;
  for (std::size_t k = 0; k < gram.rows; ++k) trace += std::max(gram.at(k, k), 0.0F);
  std::vector<float> factors(gram.rows, 1.0F);
  if (!(trace > 0)) return factors;
  const double mean = trace / static_cast<double>(gram.rows);
  for (std::size_t k = 0; k < gram.rows; ++k) {
    const double power = std::max(static_cast<double>(gram.at(k, k)) / mean, 1e-8);
    factors[k] = static_cast<float>(std::pow(power, exponent / 2));
  }
  const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
  const float middle = std::sqrt(*least * *most);
  for (auto& v : factors) v = std::clamp(v / middle, 1 / kMost, kMost);
  return factors;
}

// The error of some columns with these factors.
double error_of(const Gram& gram, std::span<const float> columns, const BlockFormat& format, bool search,
                const std::vector<float>& factors, const Kernels& kernels) {
  const std::size_t rows = gram.rows, count = columns.size() / rows;
  std::vector<float> scaled(columns.begin(), columns.end()), power(rows);
  for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] *= factors[i % rows];
  for (std::size_t k = 0; k < rows; ++k) power[k] = std::max(gram.at(k, k), 0.0F) / (factors[k] * factors[k]);
  const auto k = static_cast<std::int64_t>(rows);
  const auto rounded =
      search ? quantization::search(scaled, k, format, power) : quantization::nearest(scaled, k, format);
  std::vector<float> difference(kColumnsTogether * rows), product(difference.size());
  stored_difference(scaled, rounded, 0, count, difference.data());
  for (std::size_t i = 0; i < count * rows; ++i) difference[i] /= factors[i % rows];
  kernels.gemm(gemm_of(kColumnsTogether, rows, rows, false), difference.data(), rows, gram.values.data(), rows,
               product.data(), rows);
  return std::max(dot_double(difference.data(), product.data(), count * rows), 0.0);
}

}  // namespace

InputScales best_input_scales(const Gram& gram, std::span<const float> columns, const BlockFormat& format, bool search,
                              const Kernels& kernels, std::size_t threads) {
  constexpr int kSteps = 10;
  const std::size_t count = gram.rows > 0 ? columns.size() / gram.rows : 0;
  if (columns.size() != gram.rows * count || gram.values.size() != gram.rows * gram.rows) {
    throw internal_error("a Gram matrix and columns do not belong together");
  }
  InputScales best;
  std::vector<double> errors((count + kColumnsTogether - 1) / kColumnsTogether);
  for (int step = 0; step <= kSteps; ++step) {
    const double exponent = static_cast<double>(step) / kSteps;
    auto factors = factors_of(gram, exponent);
    parallel_for(errors.size(), threads, [&](std::size_t piece) {
      const std::size_t first = piece * kColumnsTogether, some = std::min(kColumnsTogether, count - first);
      errors[piece] =
          error_of(gram, columns.subspan(first * gram.rows, some * gram.rows), format, search, factors, kernels);
    });
    const double error = std::accumulate(errors.begin(), errors.end(), 0.0);
    if (step == 0) best.error = best.error_before = error;
    if (!(error < best.error)) continue;
    best.error = error;
    best.exponent = exponent;
    best.factors = std::move(factors);
  }
  return best;
}

}  // namespace detent::solve
