#include "solve/blocks/block_factor.h"

#include <algorithm>
#include <numeric>

#include "base/vector_clones.h"

namespace detent::solve {

std::vector<std::size_t> rounding_order(const std::vector<float>& power, std::size_t block, bool by_power) {
  std::vector<std::size_t> order(power.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!by_power) return {order.rbegin(), order.rend()};
  std::vector<double> mean((order.size() + block - 1) / block);
  for (std::size_t i = 0; i < order.size(); ++i) {
    mean[i / block] += power[i] / static_cast<double>(std::min(block, order.size() - i / block * block));
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const std::size_t p = a / block, q = b / block;
    if (p != q) return mean[p] != mean[q] ? mean[p] > mean[q] : p < q;
    return power[a] > power[b];
  });
  return {order.rbegin(), order.rend()};
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
void add_outer(const Lanes& change, const float* line, std::size_t count, Lanes* sums) {
  const Lanes c = change;
  for (std::size_t i = 0; i < count; ++i) {
    const float weight = line[i];
    for (std::size_t l = 0; l < kLanes; ++l) sums[i].at[l] += c.at[l] * weight;
  }
}

}  // namespace detent::solve
