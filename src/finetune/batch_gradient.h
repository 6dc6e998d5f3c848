// The loss of some of a layer's outputs for one sample, and its gradient by their weights, by convolutions.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "finetune/activation.h"
#include "finetune/kernels.h"
#include "finetune/patches.h"
#include "finetune/quadratic.h"

namespace detent::finetune {

/// Rows of the weight matrix that make a layer of their own: within one group, or whole groups, as row_ranges() cuts
/// them. One thread at a time.
class BatchGradient {
 public:
  BatchGradient(const LayerGeometry& geometry, RowRange rows, const Activation& activation, const Kernels& kernels);

  /// Adds the gradient of factor · sum of |a(w x + b) − target|² by w and b to `by_weights` [rows, fan_in] and
  /// `by_bias` [rows]; returns the sum. Input and target are the whole layer's; weights and bias (may be null) those of
  /// the rows.
  double add(const Shape& shape, const float* input, const float* target, const float* weights, const float* bias,
             float factor, float* by_weights, float* by_bias);

 private:
  Convolution& convolution_for(const Shape& shape);

  const LayerGeometry& geometry_;
  RowRange rows_;
  Activation activation_;
  const Kernels& kernels_;
  LayerGeometry part_;             // the rows as a layer
  std::size_t first_channel_ = 0;  // of the input
  std::map<Shape, std::unique_ptr<Convolution>> convolutions_;
  std::vector<float> output_;
  std::vector<float> gradient_;
};

}  // namespace detent::finetune
