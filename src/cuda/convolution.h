// Convolutions on a device.
#pragma once

#include <memory>
#include <vector>

#include "cuda/device.h"
#include "detent/device.h"
#include "solve/layers/geometry.h"

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

}  // namespace detent::cuda
