// Products with synthetic inputs, for weights in blocks.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "solve/blocks/block_error.h"
#include "solve/support.h"

namespace detent::solve {

enum class Inputs { outliers, low_rank, both };

/// A weight, and Gram matrices of two sets of inputs of one distribution.
struct Product {
  std::size_t rows = 0, columns = 0;
  std::vector<float> weight;
  std::vector<float> sums, other_sums;
  std::uint64_t positions = 0;

  Gram gram() const { return {sums, rows, positions}; }
  Gram held_back() const { return {other_sums, rows, positions / 2}; }
};

inline std::vector<float> sums_of(const std::vector<float>& inputs, std::size_t rows) {
  std::vector<float> sums(rows * rows);
  Gemm shape = gemm_of(rows, rows, inputs.size() / rows, false);
  shape.transpose_a = true;
  kernels().gemm(shape, inputs.data(), rows, inputs.data(), rows, sums.data(), rows);
  return sums;
}

/// outliers: independent inputs, some of which are 30 times as large; low_rank: mixtures of an eighth as many, and a
/// little noise.
inline Product make_product(Inputs kind, std::size_t rows, std::size_t columns, std::size_t positions) {
  Product made{.rows = rows,
               .columns = columns,
               .weight = normal(rows * columns, 1, 0.02F),
               .sums = {},
               .other_sums = {},
               .positions = positions};
  const std::size_t rank = std::max<std::size_t>(rows / 8, 1);
  const auto mix = normal(rows * rank, 2, 1 / std::sqrt(static_cast<float>(rank)));
  const auto spread = normal(rows, 3, 0.5F);
  const auto inputs = [&](std::size_t count, unsigned seed) {
    auto values = normal(count * rows, seed, kind == Inputs::outliers ? 1.0F : 0.1F);
    const auto latent = normal(count * rank, seed + 1);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < rows; ++k) {
        float& v = values[i * rows + k];
        for (std::size_t r = 0; r < rank && kind != Inputs::outliers; ++r)
          v += mix[k * rank + r] * latent[i * rank + r];
        if (kind != Inputs::low_rank) v *= (k % 32 == 7 ? 30.0F : 1.0F) * std::exp(spread[k]);
      }
    }
    return values;
  };
  made.sums = sums_of(inputs(positions, 10), rows);
  made.other_sums = sums_of(inputs(positions / 2, 20), rows);
  return made;
}

inline double total(const std::vector<double>& errors) {
  double sum = 0;
  for (const double e : errors) sum += e;
  return sum;
}

/// Output SQNR in dB.
inline double output_sqnr(const Product& product, const Gram& gram, const quantization::BlockWeight& weight) {
  auto nothing = quantization::make_blocks(static_cast<std::int64_t>(product.rows),
                                           static_cast<std::int64_t>(product.columns), weight.format);
  const double power = total(column_errors(gram, product.weight, nothing, kernels(), 1));
  return 10 * std::log10(power / total(column_errors(gram, product.weight, weight, kernels(), 1)));
}

}  // namespace detent::solve
