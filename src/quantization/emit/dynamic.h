// The form with dynamic activations: DynamicQuantizeLinear with MatMulInteger or ConvInteger, DynamicQuantizeLSTM, and
// tables of integers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "detent/config.h"
#include "onnx/model.h"
#include "quantization/assignment.h"
#include "quantization/dynamic.h"

namespace detent::quantization {

/// `weights` are what place_dynamic() marked, assigned; a node with a weight that has no entry there stays in float.
/// The nodes are those that ONNX Runtime's quantize_dynamic writes, and that the runtime fuses to
/// DynamicQuantizeMatMul or MatMulIntegerToFloat; a value that several products read is quantized once. A Gemm becomes
/// a product and a sum. A Gather looks up integers and their scale row by row. The model has opset 11 or later.
onnx::Model emit_dynamic(onnx::Model model, const DynamicPlacement& placement, const AssignedValues& weights);

/// From the float model to this form, with all that comes before emit_dynamic().
struct DynamicModel {
  onnx::Model model;
  std::size_t nodes = 0;           // that read integers
  std::vector<std::string> notes;  // of the assignment
};
/// Throws what place_dynamic() and scan_weights() throw.
DynamicModel make_dynamic(onnx::Model model, const QuantConfig& config, bool allow_nonfinite);

}  // namespace detent::quantization
