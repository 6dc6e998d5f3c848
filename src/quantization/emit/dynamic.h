// The form with dynamic activations: DynamicQuantizeLinear with MatMulInteger or ConvInteger, DynamicQuantizeLSTM, and
// tables of integers.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "detent/config.h"
#include "onnx/model.h"
#include "quantization/assignment.h"
#include "quantization/emit/barriers.h"

namespace detent::quantization {

/// Whether each row of what a product reads has a scale of its own: of decoders with a cache, whose first tokens have
/// values thousands of times as large as the others.
bool scales_rows(const onnx::Model& model);

/// The assignment is of what place_dynamic() marked; a node with a weight that has no entry there stays in float.
/// The nodes are those that ONNX Runtime's quantize_dynamic writes, and that the runtime fuses to
/// DynamicQuantizeMatMul or MatMulIntegerToFloat; a value that several products read is quantized once. A Gemm becomes
/// a product and a sum. A Gather looks up integers and their scale row by row. The model has opset 11 or later.
Emitted emit_dynamic(FloatModel model, const Assignment& assignment);

/// From the float model to this form, with all that comes before emit_dynamic().
struct DynamicModel {
  onnx::Model model;
  Placement placement;
  std::vector<std::string> notes;  // of the assignment
};
/// Throws what place_dynamic() and scan_weights() throw.
DynamicModel make_dynamic(onnx::Model model, const QuantConfig& config, bool allow_nonfinite,
                          const TransposedConstants& transposed = {});

// Weights as integers that become floats when the runtime loads the model: the file is smaller, and no run takes
// longer.

/// The selected GRU, LSTM and RNN layers outside bodies with float32 weights that this makes smaller; by position.
std::vector<std::size_t> layers_to_store(const onnx::Model& model, const QuantConfig& config);

/// Of the selected convolutions and matrix products outside bodies, by Node::id(), those whose float32 weights this
/// makes smaller.
std::set<std::string> products_to_store(const onnx::Model& model, const QuantConfig& config,
                                        const TransposedConstants& transposed = {});

/// Of these products those whose weight is still a float32 constant that no other node reads, as it is or transposed.
std::set<std::string> products_in_float(const onnx::Model& model, const std::set<std::string>& products,
                                        const TransposedConstants& transposed = {});

/// Names of the values that these products read as their weights.
std::set<std::string> weights_of(const onnx::Model& model, const std::set<std::string>& products);

/// The weights of these layers and products (by Node::id()) become symmetric integers of 8 bits, with a scale for each
/// row of each gate or each channel of the output, behind a Cast and a Mul, which ONNX Runtime computes once. What else
/// reads such a weight reads the floats as they were. Products whose weight is no float32 constant any more are left as
/// they are; gives back how many nodes are not.
std::size_t store_weights(onnx::Model& model, const std::set<std::string>& nodes);

/// Of a model with pairs: products whose input is no dequantized value compute in float. Weights that they share with
/// products on integers come to them through a Cast and a Mul, which ONNX Runtime computes once, with the same floats;
/// a DequantizeLinear it would compute on every run.
void load_weights_of_float_products(onnx::Model& model);

}  // namespace detent::quantization
