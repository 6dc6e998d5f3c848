// An orthogonal matrix that spreads what one channel holds over all of them, and is cheap to multiply with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace detent::graph {

/// R = B S B', with signs S drawn by chance and B the orthonormal matrix of a Hadamard transform (of the size's powers
/// of two) beside a cosine transform (of its odd factor). The first column of B is constant and its sign positive, so a
/// vector keeps its mean: normalization by mean and variance gives R times what it gave, as that by squares alone does.
/// R is symmetric, its own inverse, and the same for the same size and seed.
class OrthogonalRotation {
 public:
  OrthogonalRotation(std::size_t size, std::uint64_t seed);

  std::size_t size() const noexcept { return signs_.size(); }
  /// Multiplies each column of a matrix [size, columns] by R.
  void apply(std::span<float> rows, std::size_t columns) const;

 private:
  void hadamard(std::span<float> rows, std::size_t columns) const;
  void cosines(std::span<float> rows, std::size_t columns, bool inverse) const;

  std::size_t odd_ = 1;         // the size is this times a power of two
  std::vector<float> cosines_;  // [odd, odd]; columns are the basis
  std::vector<float> signs_;
};

}  // namespace detent::graph
