// Inputs at many similar positions, reduced to few rows with nearly the same Gram matrix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "solve/algebra/kernels.h"

namespace detent::solve {

/// The inputs of a convolution at many positions, kept as pixels. Neighbouring positions share most of them, so pixels
/// take a small part of the memory of X.
struct Pixels {
  std::size_t count = 0;  // 0: inputs are kept as they are
  std::size_t channels = 0;
  std::size_t elements = 0;           // of the kernel
  std::vector<float> values;          // count × channels
  std::vector<std::uint32_t> behind;  // elements × positions: which pixel, from 1; 0: outside of the input

  std::size_t positions() const noexcept { return elements == 0 ? 0 : behind.size() / elements; }
  /// The inputs that a kernel element reads, [positions, channels].
  std::vector<float> seen_by(std::size_t element) const;
};

/// X, [positions, channels · elements].
std::vector<float> im2col(const Pixels& pixels);
/// For each column of X, the sum of its squares.
std::vector<double> input_powers(const Pixels& pixels);
/// X Xᵀ: sums of products of pixels.
std::vector<float> products(const Pixels& pixels, const Kernels& kernels, std::size_t threads);

/// The inputs X at n positions, [n, fan_in], or the pixels that they are made of.
struct InputMatrix {
  std::size_t n = 0;
  std::size_t fan_in = 0;
  std::span<const float> inputs;  // empty where there are pixels
  const Pixels* pixels = nullptr;
};

/// For each weight, the sum of the squared inputs that it is multiplied with.
std::vector<double> input_powers(const InputMatrix& x);

/// Z = Uᵀ X in place of X, and Uᵀ Y in place of the targets, where U has few orthonormal columns of n entries. Squared
/// errors |X w − y|² become smaller by a constant, and by at most `lost` · |w|².
struct ReducedInputs {
  std::size_t count = 0;
  std::vector<float> inputs;   // count × fan_in
  std::vector<float> targets;  // rows × count, or empty as given
  double lost = 0;             // of the sum of all squared inputs: at most `may_lose`
};

/// U spans the products of all positions with those that are picked, one after the other: each time the
/// position that those before it explain least, until what they leave of the squared inputs is at most `may_lose`
/// (pivoted Cholesky of X Xᵀ: Harbrecht, Peters and Schneider 2012, "On the low-rank approximation by the pivoted
/// Cholesky decomposition"). `targets` is rows × n or empty, `power` is input_powers(). The result is the same for any
/// number of threads.
ReducedInputs reduce_inputs(const InputMatrix& x, std::span<const float> targets, std::span<const double> power,
                            double may_lose, const Kernels& kernels, std::size_t threads);

/// The same from a Gram matrix [fan_in, fan_in]: the rows of the partial Cholesky factor's transpose are inputs with
/// nearly this matrix. Nothing where there would be more than `most`.
std::optional<ReducedInputs> inputs_of_gram(std::span<const float> gram, std::size_t fan_in, double may_lose,
                                            std::size_t most);

}  // namespace detent::solve
