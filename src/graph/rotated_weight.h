// A weight times an orthogonal matrix, made stripe by stripe in a file: it is never in memory as a whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "graph/orthogonal_mix.h"
#include "onnx/tensor.h"

namespace detent::graph {

/// A matrix of float32 multiplied along an axis: rows (0) from the left, columns (1) from the right. `gains`, where
/// there are any, are multiplied with the elements along the axis before. The elements of the result lie in a new file
/// at `path`, which is mapped. Does not depend on `threads`. Throws resource where the file cannot be written.
onnx::TensorData rotated(const onnx::Tensor& weight, std::size_t axis, std::span<const float> gains,
                         const OrthogonalMix& mix, const std::filesystem::path& path, std::size_t threads);

}  // namespace detent::graph
