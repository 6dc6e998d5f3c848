#include "solve/blocks/sparsity.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/parallel.h"
#include "base/vector_clones.h"
#include "solve/algebra/vector_sums.h"
#include "solve/blocks/block_factor.h"

namespace detent::solve {
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
      order_(rounding_order(damping.diagonal, kFour, true)),
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
