// What Qualcomm's HTP makes of a node by inputs that a table of single operators does not tell.
#pragma once

#include <string_view>

#include "checking/signature.h"

namespace detent::checking {

/// Why a node is left to the CPU although its row says otherwise; empty: it is not.
std::string_view left_to_cpu_despite_table(const onnx::Node& node, const onnx::Model& model, const graph::Index& index,
                                           const Signature& forms);

}  // namespace detent::checking
