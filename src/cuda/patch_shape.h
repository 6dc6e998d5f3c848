// A layer's geometry as kernels take it.
#pragma once

#include "cuda/patch_kernels.h"
#include "solve/layers/geometry.h"

namespace detent::cuda {

/// Of a convolution or transposed convolution. Throws resource for shapes beyond what kernels count (2^31 values of a
/// channel).
PatchShape patch_shape(const solve::LayerGeometry& geometry, const std::vector<std::int64_t>& input_shape);

}  // namespace detent::cuda
