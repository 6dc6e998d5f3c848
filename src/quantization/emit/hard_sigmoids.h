// HardSigmoid on integers, for which ONNX Runtime has no kernel.
#pragma once

#include "quantization/emit/emitted.h"

namespace detent::quantization {

/// HardSigmoid between integers becomes a sum that saturates: of alpha * x + beta, cut to 0…1 by the integers of its
/// result, only x + beta / alpha is computed, quantized with a scale 1 / alpha times as large as the one that its
/// readers take the same integers with.
void emit_hard_sigmoids(Emitted& emitted);

}  // namespace detent::quantization
