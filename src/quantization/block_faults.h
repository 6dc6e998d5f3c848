// Weights in blocks that ONNX Runtime does not load, or computes wrongly.
#pragma once

#include <cstdint>
#include <string>

#include "detent/config.h"
#include "onnx/model.h"

namespace detent::quantization {

/// Why a node cannot read a weight of so many columns from blocks of so many bits; empty: it can.
std::string reason_of_runtime(const onnx::Node& node, WeightForm form, int bits, std::int64_t columns);

}  // namespace detent::quantization
