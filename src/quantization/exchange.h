// Operators that are exchanged for others, which take over their attributes: whether these mean the same there.
#pragma once

#include <string>
#include <string_view>

#include "onnx/model.h"

namespace detent::quantization {

/// Why an operator of ONNX Runtime (QMoE, DynamicQuantizeLSTM, ConvInteger, QLinear…) would not compute with the node's
/// attributes what the node does; empty if it would. An attribute that is not known of the operator speaks against it.
std::string reason_against_exchange(const onnx::Node& node, std::string_view to);

}  // namespace detent::quantization
