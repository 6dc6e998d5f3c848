#include "solve/blocks/block_error.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/numbers.h"
#include "base/parallel.h"

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

// sums[i] += change * line[i] for i below `count`.
void add_outer(const Lanes& change, const float* line, std::size_t count, Lanes* sums) {
  const Lanes c = change;
  for (std::size_t i = 0; i < count; ++i) {
    const float weight = line[i];
    for (std::size_t l = 0; l < kLanes; ++l) sums[i].at[l] += c.at[l] * weight;
  }
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

std::vector<float> damped_matrix(const Gram& gram, const Damping& damping, const std::vector<std::size_t>& order) {
  const std::size_t n = gram.rows;
  std::vector<float> sorted(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < i; ++j) sorted[i * n + j] = damping.keep * gram.at(order[i], order[j]);
    sorted[i * n + i] = damping.diagonal[order[i]];
  }
  return sorted;
}

DETENT_VECTOR_CLONES
void propagate_error(const Cholesky& factor, std::size_t first, std::size_t last, Lanes* sums, Lanes* change) {
  for (std::size_t j = last; j-- > first;) {
    const float* line = factor.row(j) + first;
    const std::size_t c = j - first;
    Lanes changed;
    const float pivot = line[c];
    for (std::size_t l = 0; l < kLanes; ++l) changed.at[l] = -sums[c].at[l] / pivot;
    change[c] = changed;
    for (std::size_t i = 0; i < c; ++i) {
      const float weight =
          line[i];  // read before a sum is written, which might be where it is, for all that a compiler knows
      for (std::size_t l = 0; l < kLanes; ++l) sums[i].at[l] += changed.at[l] * weight;
    }
  }
}

DETENT_VECTOR_CLONES

BlockGrids grids_of(const quantization::BlockWeight& made, std::size_t first_column, std::size_t columns,
                    std::size_t block) {
  BlockGrids grids{};
  for (std::size_t l = 0; l < columns; ++l) {
    const std::size_t at = (first_column + l) * static_cast<std::size_t>(made.blocks()) + block;
    const float scale = made.scales[at], inverse = 1.0F / scale;
    const int zero = made.zero_points[at];
    grids.scale.at[l] = scale;
    grids.inverse.at[l] = scale != 0 && std::isfinite(inverse) ? inverse : 0.0F;
    grids.low.at[l] = static_cast<float>(-zero);
    grids.high.at[l] = static_cast<float>(made.format.largest() - zero);
  }
  return grids;
}

void copy_in(const float* values, std::size_t first, std::size_t last, std::size_t column, Lanes* lanes) {
  for (std::size_t j = first; j < last; ++j) {
    std::copy_n(values + j * kColumnsTogether + column, kLanes, lanes[j - first].at);
  }
}

void copy_out(const Lanes* lanes, std::size_t first, std::size_t last, std::size_t column, float* values) {
  for (std::size_t j = first; j < last; ++j) {
    std::copy_n(lanes[j - first].at, kLanes, values + j * kColumnsTogether + column);
  }
}

void store_integers(const BlockColumns& columns, const std::vector<std::size_t>& order) {
  auto& made = columns.made;
  const auto rows = static_cast<std::size_t>(made.rows), blocks = static_cast<std::size_t>(made.blocks());
  const auto block = static_cast<std::size_t>(made.format.block_of(made.rows));
  for (std::size_t j = 0; j < rows; ++j) {
    const float* steps = columns.steps.data() + j * kColumnsTogether;
    for (std::size_t n = 0; n < columns.count; ++n) {
      const std::size_t column = columns.first + n;
      const int zero = made.zero_points[column * blocks + order[j] / block];
      made.integers[column * rows + order[j]] = static_cast<std::uint8_t>(static_cast<int>(steps[n]) + zero);
    }
  }
}

namespace {

constexpr std::size_t kFour = 4;

// The inverse of L_B L_Bᵀ for the places of a group: (A⁻¹)_B where A is that of all places up to these.
struct Inverse {
  float at[kFour][kFour];
};

Inverse inverse_of(const Cholesky& factor, std::size_t first) {
  double inverse[kFour][kFour] = {};  // of L_B
  for (std::size_t i = 0; i < kFour; ++i) {
    const float* line = factor.row(first + i) + first;
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = i == j ? 1 : 0;
      for (std::size_t k = j; k < i; ++k) sum -= line[k] * inverse[k][j];
      inverse[i][j] = sum / line[i];
    }
  }
  Inverse made{};
  for (std::size_t i = 0; i < kFour; ++i) {
    for (std::size_t j = 0; j < kFour; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < kFour; ++k) sum += inverse[k][i] * inverse[k][j];
      made.at[i][j] = static_cast<float>(sum);
    }
  }
  return made;
}

// `values` are those of four places if nothing went. Sets to 0 the two whose loss costs least, uᵀ (T_PP)⁻¹ u, and
// changes the other two to make up for it.
DETENT_VECTOR_CLONES
void prune_four(const Inverse& inverse, Lanes* values) {
  constexpr std::array<std::array<std::size_t, 2>, 6> kPairs{{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}};
  Lanes best, made[kFour];
  for (std::size_t pair = 0; pair < kPairs.size(); ++pair) {
    const auto [p, q] = kPairs[pair];
    const float pp = inverse.at[p][p], pq = inverse.at[p][q], qq = inverse.at[q][q];
    const float scale = 1.0F / (pp * qq - pq * pq);
    for (std::size_t l = 0; l < kLanes; ++l) {
      const float u = values[p].at[l], v = values[q].at[l];
      const float a = (qq * u - pq * v) * scale, b = (pp * v - pq * u) * scale;
      const float cost = u * a + v * b;
      const bool better = pair == 0 || cost < best.at[l];
      best.at[l] = better ? cost : best.at[l];
      for (std::size_t j = 0; j < kFour; ++j) {
        const float stays = values[j].at[l] - (inverse.at[j][p] * a + inverse.at[j][q] * b);
        const float value = j == p || j == q ? 0.0F : stays;
        made[j].at[l] = better ? value : made[j].at[l];
      }
    }
  }
  std::copy_n(made, kFour, values);
}

}  // namespace

TwoOfFour::TwoOfFour(const Gram& gram, const Damping& damping, const SparsityOptions& options, const Kernels& kernels,
                     std::size_t threads)
    : gram_(gram),
      damping_(damping),
      options_(options),
      kernels_(kernels),
      threads_(threads),
      order_(rounding_order({damping.diagonal.begin(), damping.diagonal.end()}, kFour, true)),
      factor_(damped_matrix(gram, damping, order_), gram.rows, kernels, threads) {}

// Up to kLanes columns at the places [first, last). `sums` and `difference` begin at the piece's first column.
void TwoOfFour::prune_lanes(std::span<const float> columns, std::size_t column, std::size_t first, std::size_t last,
                            std::span<const float> sums, std::span<float> difference) const {
  const std::size_t rows = gram_.rows, places = last - first, count = std::min(kLanes, columns.size() / rows - column);
  std::vector<Lanes> entries(places);
  for (std::size_t c = 0; c < places; ++c) {
    for (std::size_t l = 0; l < kLanes; ++l) entries[c].at[l] = sums[(column + l) * places + c];
  }
  for (std::size_t end = last; end > first;) {
    const std::size_t size = std::min(kFour, rows - order_[end - 1] / kFour * kFour), begin = end - size;
    Lanes spare[kFour], weights[kFour] = {}, values[kFour];
    std::copy_n(entries.data() + (begin - first), size, spare);
    propagate_error(factor_, begin, end, spare, values);
    for (std::size_t c = 0; c < size; ++c) {
      for (std::size_t l = 0; l < kLanes; ++l) {
        if (l < count) weights[c].at[l] = columns[(column + l) * rows + order_[begin + c]];
        values[c].at[l] += weights[c].at[l];
      }
    }
    if (size == kFour) prune_four(inverse_of(factor_, begin), values);
    for (std::size_t c = 0; c < size; ++c) {
      for (std::size_t l = 0; l < kLanes; ++l) values[c].at[l] -= weights[c].at[l];
      for (std::size_t l = 0; l < count; ++l) difference[(column + l) * rows + begin + c] = values[c].at[l];
      add_outer(values[c], factor_.row(begin + c) + first, begin - first, entries.data());
    }
    end = begin;
  }
}

void TwoOfFour::prune_piece(std::span<const float> columns, std::span<float> pruned) const {
  const std::size_t rows = gram_.rows, count = columns.size() / rows;
  std::vector<float> difference(kColumnsTogether * rows), sums(kColumnsTogether * Cholesky::kBlock);
  for (std::size_t last = rows; last > 0;) {
    std::size_t first = last;
    while (first > 0) {  // whole groups
      const std::size_t size = std::min(kFour, rows - order_[first - 1] / kFour * kFour);
      if (last - first + size > Cholesky::kBlock) break;
      first -= size;
    }
    factor_.product_below(difference.data(), kColumnsTogether, first, last, sums.data());
    for (std::size_t column = 0; column < count; column += kLanes) {
      prune_lanes(columns, column, first, last, sums, difference);
    }
    last = first;
  }
  for (std::size_t n = 0; n < count; ++n) {
    for (std::size_t j = 0; j < rows; ++j) {
      const std::size_t at = n * rows + order_[j];
      pruned[at] = columns[at] + difference[n * rows + j];
    }
  }
}

// Conjugate gradients for (Ŵ − W) A = 0 at what is not 0, each column by itself, with the diagonal as preconditioner.
void TwoOfFour::refine(std::span<const float> columns, std::span<float> pruned) const {
  const std::size_t rows = gram_.rows, count = columns.size() / rows, size = kColumnsTogether * rows;
  std::vector<float> step(size), product(size), residual(size), scaled(size);
  std::vector<double> power(count);
  const auto multiply = [&] {
    kernels_.gemm(gemm_of(kColumnsTogether, rows, rows, false), step.data(), rows, gram_.values.data(), rows,
                  product.data(), rows);
    for (std::size_t i = 0; i < count * rows; ++i) {
      const float value = damping_.keep * product[i] + damping_.more[i % rows] * step[i];
      product[i] = pruned[i] != 0 ? value : 0.0F;
    }
  };
  const auto scale = [&](std::size_t n) {
    float* from = residual.data() + n * rows;
    for (std::size_t k = 0; k < rows; ++k) scaled[n * rows + k] = from[k] / damping_.diagonal[k];
    return dot_double(from, scaled.data() + n * rows, rows);
  };
  for (std::size_t i = 0; i < count * rows; ++i) step[i] = pruned[i] - columns[i];
  multiply();
  for (std::size_t i = 0; i < count * rows; ++i) residual[i] = -product[i];
  for (std::size_t n = 0; n < count; ++n) power[n] = scale(n);
  step = scaled;
  for (std::size_t iteration = 0; iteration < options_.refinements; ++iteration) {
    multiply();
    for (std::size_t n = 0; n < count; ++n) {
      float* p = step.data() + n * rows;
      const double curvature = dot_double(p, product.data() + n * rows, rows);
      const double length = curvature > 0 ? power[n] / curvature : 0;
      for (std::size_t k = 0; k < rows; ++k) {
        float& value = pruned[n * rows + k];
        if (value != 0) value += static_cast<float>(length) * p[k];
      }
      add_scaled(residual.data() + n * rows, static_cast<float>(-length), product.data() + n * rows, rows);
      const double now = scale(n);
      const auto share = static_cast<float>(power[n] > 0 ? now / power[n] : 0);
      for (std::size_t k = 0; k < rows; ++k) p[k] = scaled[n * rows + k] + share * p[k];
      power[n] = now;
    }
  }
}

std::vector<float> TwoOfFour::prune(std::span<const float> columns) const {
  const std::size_t rows = gram_.rows, count = rows > 0 ? columns.size() / rows : 0;
  if (columns.size() != rows * count) throw internal_error("a Gram matrix and columns do not belong together");
  std::vector<float> pruned(columns.size());
  parallel_for((count + kColumnsTogether - 1) / kColumnsTogether, threads_, [&](std::size_t piece) {
    const std::size_t first = piece * kColumnsTogether * rows;
    const std::size_t size = std::min(kColumnsTogether * rows, columns.size() - first);
    prune_piece(columns.subspan(first, size), std::span(pruned).subspan(first, size));
    refine(columns.subspan(first, size), std::span(pruned).subspan(first, size));
  });
  return pruned;
}

}  // namespace detent::solve
