// Outputs of some rows of a layer for one sample, and the gradient by their weights, on one device.
#pragma once

#include <memory>
#include <vector>

#include "cuda/device.h"
#include "cuda/pass_kernels.h"
#include "detent/device.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/problem.h"

namespace detent::cuda {

/// A convolution or transposed convolution made ready for one input shape, in one layout: nchw, where tensors are as in
/// ONNX and filters [outputs, inputs / groups, kernel…] (transposed: [inputs, outputs / groups, kernel…]); or nhwc,
/// where channels of tensors come last, and those of filters, the second axis above, too.
class Convolution {
 public:
  /// Whether `geometry` can be made: begins and ends of axes have to be padded alike, as far as it matters.
  static bool supports(const solve::LayerGeometry& geometry, const std::vector<std::int64_t>& input_shape);

  /// `channels`: of the tensor that the inputs lie in, in nchw; the convolution's own may be fewer. Throws device.
  Convolution(Device& device, const solve::LayerGeometry& geometry, const std::vector<std::int64_t>& input_shape,
              std::int64_t channels, DeviceLayout layout, DevicePrecision precision);
  Convolution(Convolution&&) noexcept;
  Convolution& operator=(Convolution&&) noexcept;
  ~Convolution();

  /// Queued in the device's stream.
  void forward(const float* input, const float* filter, float* output) const;
  /// filter_gradient = gradient by the filter + beta · filter_gradient, the same bits each time.
  void backward_filter(const float* input, const float* output_gradient, float* filter_gradient, float beta) const;

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

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

/// Of a convolution or transposed convolution. Throws resource for shapes beyond what kernels count (2^31 values of a
/// channel).
PatchShape patch_shape(const solve::LayerGeometry& geometry, const std::vector<std::int64_t>& input_shape);

}  // namespace detent::cuda
