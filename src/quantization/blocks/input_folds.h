// Factors for the inputs of products, and where the model can be divided by them: AWQ without operators of its own.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "onnx/model.h"
#include "quantization/blocks/block_weights.h"

namespace detent::quantization {

/// A value that can be divided by a factor for each index of its last axis, where all that reads it is products whose
/// weights can be multiplied by them.
struct InputFold {
  std::string value;
  std::vector<std::size_t> tensors;  // of the placement: all weights that it is multiplied with
  /// Constant vectors to be divided: initializers that nothing else reads.
  std::vector<std::size_t> constants;
  std::optional<std::size_t> product;  // a tensor of the placement whose columns are to be divided
};

/// A value can be divided where it is made by LayerNormalization and its like (gain and bias are divided), by Mul or
/// Add with a constant vector, by a product in blocks (its columns and its bias), by Mul with a value that can be
/// divided, or by Relu of one. Each of these steps must have one reader, each constant and each weight belong to it
/// alone. All factors are positive. In the order of the placement.
std::vector<InputFold> input_folds(const onnx::Model& model, const BlockPlacement& placement);

/// Multiplies the rows of the weights that read the value, and divides what makes it. The tensors keep their places.
void apply_fold(const InputFold& fold, std::span<const float> factors, onnx::Model& model, BlockPlacement& placement);

}  // namespace detent::quantization
