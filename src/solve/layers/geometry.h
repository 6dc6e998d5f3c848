// How the output of a linear layer depends on its input and weights, without saying where it came from.
#pragma once

#include <cstdint>
#include <vector>

namespace detent::solve {

enum class LayerKind {
  product,      // y[n, m] = sum over k of x[n, k] · w[m, k]; x and y as matrices of rows, all leading axes together
  convolution,  // ONNX Conv: weights [M, C/groups, kernel…]
  transposed,   // ONNX ConvTranspose: weights [C, M/groups, kernel…]
};

/// Geometry of a layer. The spatial members have one entry for each spatial axis (1 to 3) and are empty for products.
struct LayerGeometry {
  LayerKind kind = LayerKind::product;
  std::int64_t inputs = 0;   // channels in all, or K of a product
  std::int64_t outputs = 0;  // channels in all
  std::int64_t groups = 1;
  std::vector<std::int64_t> kernel;
  std::vector<std::int64_t> strides;
  std::vector<std::int64_t> dilations;
  std::vector<std::int64_t> pads_begin;
  std::vector<std::int64_t> pads_end;
  std::vector<std::int64_t> output_padding;  // transposed only

  /// Weights that one output sums over: (inputs / groups) · kernel elements.
  std::int64_t fan_in() const;
  /// Shape of the output for an input shape [batch, channels, spatial…], or [rows…, K] of a product.
  std::vector<std::int64_t> output_shape(const std::vector<std::int64_t>& input) const;
};

}  // namespace detent::solve
