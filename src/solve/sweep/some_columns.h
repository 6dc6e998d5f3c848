// Columns of a weight that stand for all of them where something is tried out.
#pragma once

#include <vector>

#include "onnx/tensor.h"
#include "quantization/blocks/block_weights.h"

namespace detent::solve {

/// Up to two pieces of kColumnsTogether columns (of long ones fewer), evenly spread, one after another. Throws what
/// read_columns() throws.
std::vector<float> representative_columns(const onnx::Tensor& tensor, const quantization::BlockTensor& shape);

}  // namespace detent::solve
