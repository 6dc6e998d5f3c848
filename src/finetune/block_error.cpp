#include "finetune/block_error.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "finetune/vector_sums.h"

namespace detent::finetune {

namespace {

// λ of Schäfer and Strimmer.
double shrinkage(const Gram& gram, const std::vector<double>& inverse) {
  if (gram.positions < 2) return 1;
  double chance = 0, power = 0;
  for (std::size_t i = 0; i < gram.rows; ++i) {
    const float* line = gram.values.data() + i * gram.rows;
    double row_chance = 0, row_power = 0;
    for (std::size_t j = 0; j < i; ++j) {
      const double square = static_cast<double>(line[j]) * line[j] * inverse[i] * inverse[j];
      row_chance += (1 - square) * (1 - square);
      row_power += square;
    }
    chance += row_chance;
    power += row_power;
  }
  chance /= static_cast<double>(gram.positions - 1);
  return chance < power ? chance / power : 1;
}

}  // namespace

Damping::Damping(const Gram& gram, double share) : more(gram.rows), diagonal(gram.rows) {
  constexpr double kOfMean = 1e-6;
  double trace = 0;
  std::vector<double> inverse(gram.rows);
  for (std::size_t i = 0; i < gram.rows; ++i) {
    const double value = std::max(gram.at(i, i), 0.0F);
    trace += value;
    inverse[i] = value > 0 ? 1 / value : 0;
  }
  const double least = trace > 0 ? kOfMean * trace / static_cast<double>(gram.rows) : 1;
  const double lambda = shrinkage(gram, inverse);
  keep = static_cast<float>(1 - lambda);
  for (std::size_t i = 0; i < gram.rows; ++i) {
    const double value = std::max(gram.at(i, i), 0.0F);
    more[i] = static_cast<float>((lambda + share) * value + least);
    diagonal[i] = keep * gram.at(i, i) + more[i];
  }
}

double usual_damping(std::uint64_t positions) {
  constexpr double kMost = 0.5;
  return positions == 0 ? kMost : std::min(8 / std::sqrt(static_cast<double>(positions)), kMost);
}

void stored_difference(std::span<const float> columns, const quantization::BlockWeight& weight, std::size_t first,
                       std::size_t count, float* difference) {
  const auto rows = static_cast<std::size_t>(weight.rows), blocks = static_cast<std::size_t>(weight.blocks());
  const auto block = static_cast<std::size_t>(weight.format.block_of(weight.rows));
  for (std::size_t n = 0; n < count; ++n) {
    const float* values = columns.data() + (first + n) * rows;
    const std::uint8_t* integers = weight.integers.data() + (first + n) * rows;
    for (std::size_t b = 0; b < blocks; ++b) {
      const float scale = weight.scales[(first + n) * blocks + b];
      const int zero = weight.zero_points[(first + n) * blocks + b];
      for (std::size_t k = b * block; k < std::min((b + 1) * block, rows); ++k) {
        difference[n * rows + k] = scale * static_cast<float>(integers[k] - zero) - values[k];
      }
    }
  }
}

std::vector<double> column_errors(const Gram& gram, std::span<const float> columns,
                                  const quantization::BlockWeight& weight, const Kernels& kernels,
                                  std::size_t threads) {
  const auto rows = static_cast<std::size_t>(weight.rows), count = static_cast<std::size_t>(weight.columns);
  if (gram.rows != rows || gram.values.size() != rows * rows || columns.size() != rows * count) {
    throw internal_error("a Gram matrix and columns do not belong together");
  }
  std::vector<double> errors(count);
  parallel_for((count + kColumnsTogether - 1) / kColumnsTogether, threads, [&](std::size_t piece) {
    const std::size_t first = piece * kColumnsTogether, some = std::min(kColumnsTogether, count - first);
    std::vector<float> difference(kColumnsTogether * rows), product(difference.size());
    stored_difference(columns, weight, first, some, difference.data());
    kernels.gemm(gemm_of(kColumnsTogether, rows, rows, false), difference.data(), rows, gram.values.data(), rows,
                 product.data(), rows);
    for (std::size_t n = 0; n < some; ++n) {
      errors[first + n] = std::max(dot_double(difference.data() + n * rows, product.data() + n * rows, rows), 0.0);
    }
  });
  return errors;
}

}  // namespace detent::finetune
