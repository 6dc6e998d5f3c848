// A weight times an orthogonal matrix, made stripe by stripe in a file: it is never in memory as a whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "graph/rewrites/orthogonal_rotation.h"
#include "onnx/tensor.h"

namespace detent::graph {

/// Where along an axis of a matrix a rotation acts: rows are axis 0, columns axis 1.
struct RotatedPart {
  std::size_t axis = 0;
  /// From the first element to before the last: groups of as many as the rotation has, each by itself.
  std::size_t first = 0, last = 0;
};

/// A matrix of float32 multiplied along an axis: rows from the left, columns from the right. `gains`, where there are
/// any, are multiplied with the elements along the axis before. The elements of the result lie in a new file at `path`,
/// which is mapped. Does not depend on `threads`. Throws resource where the file cannot be written.
onnx::TensorData rotated(const onnx::Tensor& weight, const RotatedPart& part, std::span<const float> gains,
                         const OrthogonalRotation& mix, const std::filesystem::path& path, std::size_t threads);

}  // namespace detent::graph
