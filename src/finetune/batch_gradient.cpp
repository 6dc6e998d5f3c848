#include "finetune/batch_gradient.h"

#include <algorithm>
#include <numeric>

#include "finetune/lanes.h"

namespace detent::finetune {
namespace {

constexpr std::size_t kShapes = 8;  // that convolutions are kept ready for

std::size_t positions_of(const Shape& shape) {
  return static_cast<std::size_t>(
      std::accumulate(shape.begin() + 2, shape.end(), std::int64_t{1}, std::multiplies<>()));
}

}  // namespace

BatchGradient::BatchGradient(const LayerGeometry& geometry, RowRange rows, const Activation& activation,
                             const Kernels& kernels)
    : geometry_(geometry), rows_(rows), activation_(activation), kernels_(kernels), part_(geometry) {
  const auto group_rows = static_cast<std::size_t>(geometry.outputs / geometry.groups);
  const std::size_t groups = std::max<std::size_t>(rows.count() / group_rows, 1);
  const std::int64_t group_inputs = geometry.inputs / geometry.groups;
  part_.groups = static_cast<std::int64_t>(groups);
  part_.outputs = static_cast<std::int64_t>(rows.count());
  part_.inputs = part_.groups * group_inputs;
  first_channel_ = rows.first / group_rows * static_cast<std::size_t>(group_inputs);
}

double BatchGradient::add(const Shape& shape, const float* input, const float* target, const float* weights,
                          const float* bias, float factor, float* by_weights, float* by_bias) {
  const Shape output_shape = geometry_.output_shape(shape);
  const std::size_t in = positions_of(shape);
  const std::size_t out = positions_of(output_shape);
  if (out == 0) return 0;
  Convolution& convolution = convolution_for(shape);
  output_.resize(rows_.count() * out);
  gradient_.resize(rows_.count() * static_cast<std::size_t>(geometry_.fan_in()));
  double sum = 0;
  for (std::size_t n = 0; n < static_cast<std::size_t>(shape[0]); ++n) {  // channels of one sample lie together
    const float* x = input + (n * static_cast<std::size_t>(geometry_.inputs) + first_channel_) * in;
    convolution.forward(x, weights, output_.data());
    for (std::size_t r = 0; r < rows_.count(); ++r) {
      float* y = output_.data() + r * out;
      const float* wanted = target + (n * static_cast<std::size_t>(geometry_.outputs) + rows_.first + r) * out;
      for (std::size_t p = 0; bias != nullptr && p < out; ++p) y[p] += bias[r];
      sum += loss_and_gradient(activation_, y, wanted, out, factor);
      if (by_bias != nullptr) by_bias[r] += static_cast<float>(sum_double(y, out));
    }
    convolution.backward_weights(x, output_.data(), gradient_.data());
    add_scaled(by_weights, 1.0F, gradient_.data(), gradient_.size());
  }
  return sum;
}

Convolution& BatchGradient::convolution_for(const Shape& shape) {
  Shape one = shape;
  one[0] = 1;
  one[1] = part_.inputs;
  auto found = convolutions_.find(one);
  if (found == convolutions_.end()) {
    if (convolutions_.size() == kShapes) convolutions_.clear();
    found = convolutions_.emplace(one, kernels_.convolution(part_, one)).first;
  }
  return *found->second;
}

}  // namespace detent::finetune
