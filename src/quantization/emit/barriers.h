// Keeps runtimes from quantizing what a model leaves in float.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/weights.h"

namespace detent::quantization {

// What every emitter returns: the quantized model, and where in it each part of the float model went.

/// Where a value or a constant of the float model is stored in the quantized one, by names there.
struct StoredTensor {
  std::string stored;                    // the integers: an initializer, or what a QuantizeLinear makes
  std::string scale;                     // initializer
  std::string zero_point;                // initializer
  std::string read_as;                   // the float value that readers of the integers see
  std::optional<Summation> paired = {};  // as of the mark
};

/// An int32 bias.
struct StoredBias {
  std::string stored;  // initializer
  std::string scale;   // initializer: input scale · weight scale
};

struct Provenance {
  std::map<std::string, StoredTensor> values;     // by name in the float model, constants among them
  std::map<std::size_t, StoredBias> biases;       // by node of the float model
  std::vector<std::optional<std::size_t>> nodes;  // for each node of the float model, where it is; unset: removed
};

struct Emitted {
  onnx::Model model;
  Provenance provenance;
  std::vector<std::string> notes;  // what could not be done as assigned
};

/// ONNX Runtime (its optimizer WeightBiasQuantization) rounds float weights of a Conv, ConvTranspose or Gemm to int8
/// with one scale for the tensor where the input comes out of a DequantizeLinear with one scale, and the output goes to
/// a QuantizeLinear, behind Relu, Clip and what moves values or not, and nowhere else. Puts a Max of one value, which
/// changes nothing, before such a QuantizeLinear: that is not undone by the optimizer. The same
/// behind a MaxPool of float values, which the runtime (QDQPropagation) would let run on integers, outside of the
/// layout of the convolution before it: 30 times slower.
void add_barriers(Emitted& emitted);

/// The same where ONNX Runtime would not load the model:
/// - behind is_float_kernel() (quantization/placement/rules.h), for which it would take integer kernels;
/// - behind weights of 2 or 4 bits in a body, which it would merge with their product, and looks for among the body's
///   own tensors;
/// - from opset 21 on, where int8 would be carried over what moves values (QDQPropagation; seen with 1.31 and 1.32): it
///   says int8 of the new pair, makes uint8 of it, and refuses what it made. The same for a MatMul of other than two
///   axes and the Add of a vector, of which it makes a Gemm between Reshapes.
void add_barriers_for_loading(Emitted& emitted, const graph::ValueTypes& types);

/// The same between a DequantizeLinear and what only moves its values to where a body reads them. That optimizer would
/// put a pair before the body, and makes the runtime die while it loads the model.
void add_barriers_before_bodies(Emitted& emitted);

/// The same between a Relu or Clip, or what moves its values, and a QuantizeLinear that makes floats of 8 bits. Up
/// to 1.32 the runtime's optimizer takes them for integers that end at 0 (ReluQuantRewrite) and leaves out the Relu, or
/// refuses the model. And between a MatMul of such floats and the Add of a constant, of which it makes a Gemm with a
/// Reshape of 8-bit floats, for which it has no kernel.
void add_barriers_before_floats(Emitted& emitted);

/// Puts a Max of one value where ONNX Runtime (seen from 1.24 to 1.32) makes something wrong of float16:
/// - It dies while it loads a product with a constant matrix of what a Transpose with another first axis makes.
/// - It makes an operator of a Concat between integers that takes no float16 scales.
/// - It makes int32 of the bias of a product between integers, or of what is added to one, at the product of two
///   scales, which may be 0 in float16, as their ratio may be infinite: then results are 0 or anything.
void add_float16_barriers(onnx::Model& model);

/// ONNX Runtime (QDQ fusions; of what reads floats since 1.26, of what reads 16-bit pairs in 1.32) makes MatMulNBits of
/// a product whose matrix comes out of a DequantizeLinear and whose other input is no pair of 8 bits, and that rounds
/// what it reads to int8 in blocks: 16 bits become 8. It knows such a matrix by an axis that is counted from the front,
/// or by a scale without axes: writes the same with the axis counted from the back, and with vectors of one number.
void keep_inputs_as_they_are(onnx::Model& model);

/// Puts each node before the node at its position, which reads its result in the place of what it reads.
void insert_before(std::multimap<int, onnx::Node> nodes, Emitted& emitted);

}  // namespace detent::quantization
