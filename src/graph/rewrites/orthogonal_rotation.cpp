#include "graph/rewrites/orthogonal_rotation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

namespace detent::graph {

OrthogonalRotation::OrthogonalRotation(std::size_t size, std::uint64_t seed) : odd_(size), signs_(size, 1.0F) {
  while (odd_ > 1 && odd_ % 2 == 0) odd_ /= 2;
  const auto n = static_cast<double>(odd_);
  for (std::size_t at = 0; at < odd_; ++at) {
    for (std::size_t wave = 0; wave < odd_; ++wave) {
      const double angle = std::numbers::pi * static_cast<double>(wave) * (static_cast<double>(at) + 0.5) / n;
      cosines_.push_back(static_cast<float>(std::cos(angle) * std::sqrt((wave == 0 ? 1 : 2) / n)));
    }
  }
  std::mt19937_64 random(seed);
  for (std::size_t i = 1; i < size; ++i) signs_[i] = (random() & 1U) != 0 ? 1.0F : -1.0F;
}

// Of neighbours that lie `odd_` rows apart, twice as many, and so on. Without the factor that makes it orthonormal.
void OrthogonalRotation::hadamard(std::span<float> rows, std::size_t columns) const {
  for (std::size_t step = odd_; step < size(); step *= 2) {
    for (std::size_t first = 0; first < size(); first += 2 * step) {
      float* a = rows.data() + first * columns;
      float* b = a + step * columns;
      for (std::size_t i = 0; i < step * columns; ++i) {
        const float sum = a[i] + b[i];
        b[i] = a[i] - b[i];
        a[i] = sum;
      }
    }
  }
}

void OrthogonalRotation::cosines(std::span<float> rows, std::size_t columns, bool inverse) const {
  if (odd_ == 1) return;
  std::vector<float> group(odd_ * columns);
  for (std::size_t first = 0; first < size(); first += odd_) {
    float* values = rows.data() + first * columns;
    std::fill(group.begin(), group.end(), 0.0F);
    for (std::size_t to = 0; to < odd_; ++to) {
      for (std::size_t from = 0; from < odd_; ++from) {
        const float factor = inverse ? cosines_[to * odd_ + from] : cosines_[from * odd_ + to];
        for (std::size_t c = 0; c < columns; ++c) group[to * columns + c] += factor * values[from * columns + c];
      }
    }
    std::copy(group.begin(), group.end(), values);
  }
}

void OrthogonalRotation::apply(std::span<float> rows, std::size_t columns) const {
  cosines(rows, columns, false);
  hadamard(rows, columns);
  const float share = static_cast<float>(odd_) / static_cast<float>(size());  // of both transforms
  for (std::size_t r = 0; r < size(); ++r) {
    for (std::size_t c = 0; c < columns; ++c) rows[r * columns + c] *= signs_[r] * share;
  }
  hadamard(rows, columns);
  cosines(rows, columns, true);
}

}  // namespace detent::graph
