// Which weights of a model are stored in blocks, and by which of their nodes they are read: decided from the graph.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "detent/config.h"
#include "onnx/model.h"
#include "quantization/placement/placement.h"

namespace detent::quantization {

/// Throws bad_input for a node without the input that would be its weight. Models whose weights alone are stored in
/// blocks need not have been loaded by a runtime, which refuses such a node.
void refuse_absent_weights(const onnx::Model& model);

/// Weights of the selected MatMul, Gemm and (in the form matmul_nbits, or where they are named) Gather nodes, in that
/// form of MoE nodes that can become QMoE, and of Conv, ConvTranspose, LSTM, GRU and other MoE nodes where these types
/// are named, as far as blocks make them smaller. Nodes
/// that share a weight share its bits: those of the last entry for any of them. Throws usage for names and types that
/// match nothing.
///
/// `planned`: bits of each node that node_bits does not name, 0 for float, instead of WeightsOnlyConfig::bits; empty:
/// none.
Placement place_blocks(const onnx::Model& model, const QuantConfig& config, const WeightsOnlyConfig& blocks,
                       std::span<const int> planned = {});

/// For each node the bits that node_bits says, 0 for float; unset for those that it does not name. Throws usage for a
/// name that no node has.
std::vector<std::optional<int>> named_bits(const onnx::Model& model, const WeightsOnlyConfig& blocks);

/// The placement in the same model with its floats raised to float32, where so many nodes stand before all others.
void move_to_float32(Placement& placement, std::size_t nodes_before);

// Factors for the inputs of products, and where the model can be divided by them: AWQ without operators of its own.

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
std::vector<InputFold> input_folds(const onnx::Model& model, const Placement& placement);

/// Multiplies the rows of the weights that read the value, and divides what makes it. The tensors keep their places.
void apply_fold(const InputFold& fold, std::span<const float> factors, onnx::Model& model, Placement& placement);

}  // namespace detent::quantization
