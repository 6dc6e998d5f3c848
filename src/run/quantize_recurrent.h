// Recurrent layers of a model whose other activations are static.
#pragma once

#include <string>
#include <vector>

#include "detent/quantize.h"
#include "onnx/model.h"
#include "run/prepare.h"

namespace detent::run {

/// The LSTM layers that the user named by their type (quantization/dynamic.h) get integer weights in the quantized
/// model, and find the scales of their activations while the model runs. Gives back notes.
std::vector<std::string> quantize_recurrent(const Prepared& prepared, const QuantizeOptions& options,
                                            onnx::Model& quantized);

}  // namespace detent::run
