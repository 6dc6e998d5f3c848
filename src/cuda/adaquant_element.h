// AdaQuant's step for one weight: the formulas of solve/layers/adaquant_step.cpp.
#pragma once

#include <cmath>

#include "cuda/adaround_element.h"

namespace detent::cuda {

struct AdaQuantNumbers {
  float rate, scale;  // of Adam
};

/// In steps of the row's scale, less the zero point.
struct AdaQuantVariable {
  float w, mean, square, q;
};

/// `gradient`: of the loss by the quantized weight, not in units of the scale; none reaches a weight that is clipped.
/// One step is 1 / per_step.
DETENT_DEVICE AdaQuantVariable adaquant_step(AdaQuantVariable x, float gradient, float low, float high, float per_step,
                                             const AdaQuantNumbers& step) {
  const float rounded = std::rint(x.w);
  const Moments moments = with_gradient({x.mean, x.square}, rounded < low || rounded > high ? 0.0F : gradient);
  x.mean = moments.mean;
  x.square = moments.square;
  x.w += adam_change(moments, step.rate, step.scale) * per_step;
  const float next = std::rint(x.w);
  x.q = next < low ? low : next > high ? high : next;
  return x;
}

}  // namespace detent::cuda
