// Operators that read weights, and how weights alone are stored for each: with dynamic activations, and in blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "detent/config.h"
#include "graph/operators.h"
#include "onnx/model.h"
#include "quantization/placement/placement.h"

namespace detent::quantization {

using graph::BlockWeights;
using graph::DynamicWeights;
using graph::WeightOperator;

/// Null of other operators.
const WeightOperator* weight_operator(const onnx::Node& node) noexcept;

/// In the order of their names, for messages.
std::vector<std::string> types_with_dynamic_weights();
std::vector<std::string> types_with_block_weights();

// Operators that are exchanged for others, which take over their attributes: whether these mean the same there.

/// Why an operator of ONNX Runtime (QMoE, DynamicQuantizeLSTM, ConvInteger, QLinear…) would not compute with the node's
/// attributes what the node does; empty if it would. An attribute that is not known of the operator speaks against it.
std::string reason_against_exchange(const onnx::Node& node, std::string_view to);

// Dynamic quantization: weights are integers, and activations become integers at each run, with scales from the values
// of that run. Which nodes take part is decided from the graph.

/// Which inputs of such a node are weights: none of other nodes.
std::vector<std::size_t> weight_inputs(const onnx::Node& node);

/// What other nodes read of a weight that has become integers, and of the constant that it is the transpose of.
enum class OtherReaders : std::uint8_t { unrounded, rounded, rounded_with_transposes };

/// Of the selected nodes those whose weight stays in float as well, since another node or a transpose of it is read so,
/// where integers beside such weights take more than integers instead of the others save: none if they do not.
std::vector<std::size_t> enlarging_nodes(const onnx::Model& model, const graph::Index& index, QuantType type,
                                         const TransposedConstants& transposed, const std::vector<bool>& selected,
                                         OtherReaders others = OtherReaders::unrounded);
inline constexpr std::string_view kBesideFloat = "what else reads its weight, or is an output, keeps that in float";

/// Of the selected nodes, or where no types are named of all MatMul, Gemm, LSTM and Gather nodes, those that read
/// float32 weights. They get a scale for each output or, without QuantConfig::per_channel, for each weight, LSTM for
/// each direction; tables one for each row. Constants of `transposed` share scales with those that they are the
/// transpose of. Throws usage for selections that match nothing or types that have no such form, and bad_input when
/// nothing is left.
Placement place_dynamic(const onnx::Model& model, const QuantConfig& config,
                        const TransposedConstants& transposed = {});

/// The nodes that place_dynamic() gives integers; there may be none.
std::vector<std::size_t> dynamic_nodes(const onnx::Model& model, const QuantConfig& config);

/// Whether QuantConfig::op_types names LSTM.
bool names_recurrent(const QuantConfig& config);

/// LSTM layers that can have integer weights where all other activations are static: those that the user named by their
/// type, or those that are tried (config::tries_recurrent()).
std::vector<std::size_t> recurrent_layers(const onnx::Model& model, const QuantConfig& config);

}  // namespace detent::quantization
