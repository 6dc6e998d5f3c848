#include "solve/blocks/block_error.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "solve/algebra/vector_sums.h"

namespace detent::solve {

namespace {

// λ of Schäfer and Strimmer.
double shrinkage(const Gram& gram) {
  if (gram.positions < 2) return 1;
  std::vector<double> inverse(gram.rows);
  for (std::size_t i = 0; i < gram.rows; ++i) {
    const double value = gram.values[i * gram.rows + i];  // divisors change no correlation
    inverse[i] = value > 0 ? 1 / value : 0;
  }
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

bool fits(const GramOrInputRows& judge, std::size_t rows) {
  if (const auto* gram = std::get_if<Gram>(&judge)) return gram->rows == rows && gram->values.size() == rows * rows;
  const auto& inputs = std::get<InputRows>(judge);
  return inputs.rows == rows && inputs.values.size() == rows * inputs.positions;
}

// Of kColumnsTogether columns d the sum over positions of (x·d)².
std::vector<double> squares(const Gram& gram, const std::vector<float>& columns, const Kernels& kernels) {
  const std::size_t rows = gram.rows;
  std::vector<float> product(columns.size());
  kernels.gemm(gemm_of(kColumnsTogether, rows, rows, false), columns.data(), rows, gram.values.data(), rows,
               product.data(), rows);
  std::vector<double> sums(kColumnsTogether);
  for (std::size_t n = 0; n < sums.size(); ++n)
    sums[n] = std::max(dot_double(columns.data() + n * rows, product.data() + n * rows, rows), 0.0);
  return sums;
}

std::vector<double> squares(const InputRows& inputs, const std::vector<float>& columns, const Kernels& kernels) {
  const auto positions = static_cast<std::size_t>(inputs.positions);
  std::vector<float> results(kColumnsTogether * positions);
  kernels.gemm(gemm_of(kColumnsTogether, positions, inputs.rows, true), columns.data(), inputs.rows,
               inputs.values.data(), inputs.rows, results.data(), positions);
  std::vector<double> sums(kColumnsTogether);
  for (std::size_t n = 0; n < sums.size(); ++n)
    sums[n] = dot_double(results.data() + n * positions, results.data() + n * positions, positions);
  return sums;
}

}  // namespace

Damping::Damping(const Gram& gram, double share) : more(gram.rows), diagonal(gram.rows) {
  constexpr double kOfMean = 1e-6;
  double trace = 0;
  for (std::size_t i = 0; i < gram.rows; ++i) trace += std::max(gram.at(i, i), 0.0F);
  const double least = trace > 0 ? kOfMean * trace / static_cast<double>(gram.rows) : 1;
  const double lambda = shrinkage(gram);
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

std::vector<double> column_errors(const GramOrInputRows& judge, std::span<const float> columns,
                                  const quantization::BlockWeight& weight, const Kernels& kernels,
                                  std::size_t threads) {
  const auto rows = static_cast<std::size_t>(weight.rows), count = static_cast<std::size_t>(weight.columns);
  if (!fits(judge, rows) || columns.size() != rows * count) {
    throw internal_error("what judges and columns do not belong together");
  }
  const auto divisors = std::visit([](const auto& by) { return by.divisors; }, judge);
  std::vector<double> errors(count);
  parallel_for((count + kColumnsTogether - 1) / kColumnsTogether, threads, [&](std::size_t piece) {
    const std::size_t first = piece * kColumnsTogether, some = std::min(kColumnsTogether, count - first);
    std::vector<float> difference(kColumnsTogether * rows);
    stored_difference(columns, weight, first, some, difference.data());
    for (std::size_t i = 0; i < some * rows && !divisors.empty(); ++i) difference[i] /= divisors[i % rows];
    const auto found = std::visit([&](const auto& by) { return squares(by, difference, kernels); }, judge);
    std::copy_n(found.begin(), some, errors.begin() + static_cast<std::ptrdiff_t>(first));
  });
  return errors;
}

}  // namespace detent::solve
