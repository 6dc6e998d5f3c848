// Weights of recurrent layers as integers that become floats when the runtime loads the model: the file is smaller, and
// no run takes longer.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "detent/config.h"
#include "onnx/model.h"

namespace detent::quantization {

/// GRU, LSTM and RNN layers outside bodies with float32 weights that this makes smaller; by position. None where the
/// options do not let them be tried (config::tries_recurrent()).
std::vector<std::size_t> layers_to_store(const onnx::Model& model, const QuantConfig& config);

/// The weights of these layers (by Node::id()) become symmetric integers of 8 bits with a scale for each row of each
/// gate, behind a Cast and a Mul, which ONNX Runtime computes once.
void store_weights(onnx::Model& model, const std::set<std::string>& layers);

}  // namespace detent::quantization
