// The residual stream of a transformer, rotated: what one channel holds is spread over all of them, so that outliers
// among channels are gone from the weights that read them. The model computes the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"

namespace detent::graph {

/// Where rotated weights are made.
struct RotationPlace {
  std::filesystem::path directory;  // for files of rotated weights, which the owner of the directory removes
  std::size_t threads = 1;
};

/// Multiplies all that writes the stream and all that reads it by an OrthogonalRotation. `embedding` is the Gather by
/// which tokens enter it. Gains of normalizations move into the products that read them, biases of LayerNormalization
/// are rotated with the stream. A table that is the last product's weight as well is stored twice then, with a note.
/// Weights must be float32. Throws bad_input with the node at which the stream cannot be followed.
Notes rotate_stream(onnx::Model& model, const std::string& embedding, const RotationPlace& place);

/// The same for the values of each head between the product that makes them and the one that reads what attention makes
/// of them, where both are products with constant matrices around a GroupQueryAttention. (Attention weighs values,
/// which rotates along.) Gives back in how many attentions.
std::size_t rotate_heads(onnx::Model& model, const RotationPlace& place);

/// Of the files that both make of a model. Throws what rotate_stream() throws, but for normalizations whose gain is 0.
std::uint64_t rotated_bytes(onnx::Model model, const std::string& embedding);

/// What rotate_heads() alone makes.
std::uint64_t rotated_bytes_of_heads(onnx::Model& model);

// An orthogonal matrix that spreads what one channel holds over all of them, and is cheap to multiply with.

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
