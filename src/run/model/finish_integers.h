// What is done to a quantized model after its Q/DQ pairs are in, so that it is as it will be written.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "detent/quantize.h"
#include "onnx/model.h"
#include "run/model/prepare.h"

namespace detent::run {

/// The LSTM layers that become integers: those that the user named by their type and Prepared::tried
/// (quantization/dynamic.h), but none that stays in float. Positions of nodes.
std::vector<std::size_t> recurrent_layers(const Prepared& prepared, const QuantConfig& config);

/// The layers whose weights are stored as integers that become floats when the model is loaded: those of
/// Prepared::stored that need not keep their weights. By Node::id().
std::set<std::string> stored_layers(const Prepared& prepared);

/// quantization::store_weights(), and what there is to tell of it.
std::vector<std::string> store_weights(const std::set<std::string>& nodes, onnx::Model& quantized);

/// Whether any recurrent layer has integer weights, in either form.
bool changes_recurrent(const Prepared& prepared, const QuantConfig& config);

/// Gives recurrent_layers() integer weights, so that they find the scales of their activations while the model runs;
/// turns pairs into operators on integers where the format asks for it; stores equal constants once. Gives back notes.
std::vector<std::string> finish_integers(const Prepared& prepared, const QuantizeOptions& options,
                                         onnx::Model& quantized);

}  // namespace detent::run
