// What ONNX Runtime's CPU kernels make of a node by its neighbours, which a table of single operators does not tell.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "checking/signature.h"
#include "graph/index.h"

namespace detent::checking {

/// Whether a node between int8 values runs in float on x86 CPUs: ONNX Runtime makes uint8 of the values that are
/// dequantized once, others stay int8, and an operator has a kernel for one type of values alone; convolutions and
/// matrix products for uint8.
bool mixes_signs(const onnx::Model& model, const graph::Index& index, const onnx::Node& node);

struct InFloat {
  std::string_view rule, suggestion;  // what would change it; empty where nothing does
};

/// Why a product between integers is computed in float, although its types have a kernel; empty: it is not.
/// `merged_rank`: of the result of a MatMul, where the runtime makes a Gemm of it and a sum with a constant behind it.
InFloat product_in_float(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                         const Signature& forms, std::optional<std::size_t> merged_rank);

// What Qualcomm's HTP makes of a node by inputs that a table of single operators does not tell.

/// Why a node is left to the CPU although its row says otherwise; empty: it is not.
std::string_view left_to_cpu_despite_table(const onnx::Node& node, const onnx::Model& model, const graph::Index& index,
                                           const Signature& forms);

}  // namespace detent::checking
