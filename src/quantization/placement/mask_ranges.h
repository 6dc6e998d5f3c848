// Ranges of scores that a mask is added to before a Softmax: up to where it gives 0, not down to the mask.
#pragma once

#include "calibration/statistics.h"
#include "onnx/model.h"
#include "quantization/placement/placement.h"

namespace detent::quantization {

/// Of the marked values that hold masks (graph/masks.h), as far as the scores beside them were observed.
calibration::Ranges mask_ranges(const onnx::Model& model, const Placement& placement,
                                const calibration::Statistics& statistics);

}  // namespace detent::quantization
