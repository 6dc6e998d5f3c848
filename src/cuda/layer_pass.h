// Outputs of some rows of a layer for one sample, and the gradient by their weights, on one device.
#pragma once

#include <map>
#include <memory>

#include "cuda/convolution.h"
#include "cuda/matmul.h"
#include "cuda/pass_kernels.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/patches.h"

namespace detent::cuda {

/// Samples come one at a time, and of each one or more pieces: begin(), forward(), then, once the outputs have become
/// the loss's slope, backward(). One thread at a time, whose device is this one.
class LayerPass {
 public:
  virtual ~LayerPass() = default;
  virtual std::size_t pieces(const solve::Shape& shape) const = 0;
  /// `input` and `target`: the whole layer's, on the device, until the piece is done.
  virtual void begin(const solve::Shape& shape, const float* input, const float* target, std::size_t piece) = 0;
  virtual void forward(const float* filter) = 0;
  /// Of the piece that was begun.
  virtual const OutputPlace& outputs() const = 0;
  /// filter_gradient = gradient from outputs(), added to what is there if `add`.
  virtual void backward(float* filter_gradient, bool add) = 0;
  /// How weights lie in filters; whether that is as in the matrix [outputs, fan_in].
  virtual FilterOrder order() const = 0;
  virtual bool is_matrix() const = 0;
};

/// By matrix products with the positions: of every kind of layer, and the only way for products.
std::unique_ptr<LayerPass> patch_pass(Device& device, const solve::LayerGeometry& geometry, solve::RowRange rows,
                                      DevicePrecision precision);
/// By convolutions, for all shapes that Convolution::supports() makes.
std::unique_ptr<LayerPass> convolution_pass(Device& device, const solve::LayerGeometry& geometry, solve::RowRange rows,
                                            DeviceLayout layout, DevicePrecision precision);

/// A layer that rows of another make: whole groups, or some of the rows of one. `first_channel`: its first input there.
struct PartOfLayer {
  solve::LayerGeometry geometry;
  std::size_t first_channel;
};
PartOfLayer part_of(const solve::LayerGeometry& geometry, solve::RowRange rows);

}  // namespace detent::cuda
