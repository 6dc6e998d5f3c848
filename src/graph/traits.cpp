#include "graph/traits.h"

#include <array>
#include <cstddef>

#include "onnx/bodies.h"
#include "onnx/functions.h"
#include "onnx/model.h"

namespace detent::graph {
namespace {

using enum Trait;
using enum Counting;

constexpr auto kNoInput = OperatorTraits::kNoInput;
constexpr std::string_view kMicrosoft = "com.microsoft", kQuark = onnx::kQuarkDomain;

// Columns: type, traits, counting, bias, opset of 8 bits, domain.
constexpr auto kRows = std::to_array<OperatorTraits>({
    // Convolutions and matrix products.
    {"Conv", product | convolution | by_default, macs, 2},
    {"ConvTranspose", product | convolution | by_default, macs, 2},
    {"Gemm", product | by_default, macs, 2},
    {"MatMul", product | by_default, macs},
    // Recurrent layers multiply as well, but are never quantized.
    {"GRU", recurrent, macs, 3},
    {"LSTM", recurrent, macs, 3},
    {"RNN", recurrent, macs, 3},

    // Normalizations, and distributions over an axis.
    {"BatchNormalization", normalization | by_default, per_input, 2},
    {"InstanceNormalization", normalization | by_default, per_input, 2},
    {"LayerNormalization", normalization | by_default, per_input, 2},
    {"EmbedLayerNormalization", by_default, per_output, kNoInput, 0, kMicrosoft},
    {"LogSoftmax", judged_by_inputs, per_input},
    {"Softmax", by_default | judged_by_inputs, per_input},

    // Element-wise: with tables of their responses, and without.
    {"Abs", element_wise | has_response},
    {"Add", element_wise | joins | carries_integers | by_default | has_response},
    {"Celu", element_wise | has_response},
    {"Clip", element_wise | clips | carries_integers | overwrites | by_default | has_response},
    {"Div", element_wise | has_response},
    {"Elu", element_wise | overwrites | has_response},
    {"Erf", element_wise | has_response},
    {"Exp", element_wise | has_response},
    {"Gelu", element_wise | has_response},
    {"Gelu", element_wise | has_response, per_output, kNoInput, 0, kMicrosoft},
    {"HardSigmoid", element_wise | overwrites | has_response},
    {"HardSwish", element_wise | has_response},
    {"LeakyRelu", element_wise | carries_integers | overwrites | by_default | has_response},
    {"Mish", element_wise | has_response},
    {"Mul", element_wise | by_default | has_response},
    {"Neg", element_wise | has_response},
    {"Pow", element_wise | has_response},
    {"Relu", element_wise | clips | carries_integers | overwrites | by_default | has_response},
    {"Selu", element_wise | has_response},
    {"Sigmoid", element_wise | overwrites | by_default | has_response},
    {"Softplus", element_wise | overwrites | has_response},
    {"Softsign", element_wise | has_response},
    {"Sqrt", element_wise | has_response},
    {"Sub", element_wise | has_response},
    {"Swish", element_wise | has_response},
    {"Tanh", element_wise | overwrites | has_response},
    {"ThresholdedRelu", element_wise | has_response},
    {"Cast", element_wise | overwrites, moves},
    {"Ceil", element_wise},
    {"Floor", element_wise},
    {"Log", element_wise},
    {"Reciprocal", element_wise},

    // Every value to exactly one place.
    {"DepthToSpace", rearranges | carries_integers, moves},
    {"Flatten", renames | rearranges | shares_scale | carries_integers | by_default | judged_by_inputs, free},
    {"Identity", renames | rearranges | judged_by_inputs, free},
    {"Reshape", renames | rearranges | shares_scale | carries_integers | by_default | judged_by_inputs, free},
    {"SpaceToDepth", rearranges | carries_integers, moves},
    {"Squeeze", renames | rearranges | shares_scale | carries_integers | by_default | judged_by_inputs, free},
    {"Transpose", rearranges | shares_scale | carries_integers | by_default | judged_by_inputs, moves},
    {"Unsqueeze", renames | rearranges | shares_scale | carries_integers | by_default | judged_by_inputs, free},

    // Some values of the input, or several times, or those of several inputs.
    {"Concat", joins | carries_integers | by_default | judged_by_inputs, moves},
    {"Dropout", renames, moves},
    {"Expand", shares_scale, moves},
    {"Gather", looks_up | shares_scale | carries_integers | by_default, moves},
    {"GatherElements", shares_scale | carries_integers | by_default, moves},
    {"GatherND", none, moves},
    {"Pad", carries_integers | by_default, moves},
    {"Resize", shares_scale | carries_integers | by_default, moves, kNoInput, 11},
    {"ScatterND", none, moves},
    {"Slice", shares_scale | carries_integers | by_default, moves},
    {"Split", shares_scale | carries_integers | by_default, moves},
    {"Tile", shares_scale, moves},
    {"TopK", shares_scale | by_default, per_input},
    {"Upsample", none, moves},
    {"Where", by_default, moves},

    // Pooling, reductions and scans.
    {"ArgMax", by_default, per_input},
    {"ArgMin", none, per_input},
    {"AveragePool", shares_scale | carries_integers | by_default, per_window},
    {"CumSum", by_default, per_input},
    {"GlobalAveragePool", carries_integers | by_default, per_input},
    {"GlobalMaxPool", none, per_input},
    {"MaxPool", shares_scale | carries_integers | by_default, per_window, kNoInput, 12},
    {"ReduceL1", none, per_input},
    {"ReduceL2", none, per_input},
    {"ReduceLogSum", none, per_input},
    {"ReduceLogSumExp", none, per_input},
    {"ReduceMax", none, per_input},
    {"ReduceMean", none, per_input},
    {"ReduceMin", none, per_input},
    {"ReduceProd", none, per_input},
    {"ReduceSum", none, per_input},
    {"ReduceSumSquare", none, per_input},

    // Constants, shapes and chance.
    {"Constant", none, free},
    {"ConstantOfShape", none, moves},
    {"Shape", none, free},
    {"Size", none, moves},
    {"Bernoulli", random},
    {"Multinomial", random},
    {"RandomNormal", random},
    {"RandomNormalLike", random},
    {"RandomUniform", random},
    {"RandomUniformLike", random},
    {onnx::kBodyInputs, random, free, kNoInput, 0, onnx::kPrivateDomain},  // another value at each run of the body

    // What quantized models are made of.
    {"ConvInteger", quantized},
    {"DequantizeLinear", quantized | dequantizes},
    {"DynamicQuantizeLinear", quantized},
    {"MatMulInteger", quantized},
    {"QLinearConv", quantized, macs},
    {"QLinearMatMul", quantized, macs},
    {"QuantizeLinear", quantized | quantizes},
    {"DequantizeLinear", quantized | dequantizes, per_output, kNoInput, 0, kMicrosoft},
    {"MatMulNBits", quantized, per_output, kNoInput, 0, kMicrosoft},
    {"QGemm", quantized, macs, kNoInput, 0, kMicrosoft},
    {"BFPQuantizeDequantize", quantized, per_output, kNoInput, 0, kQuark},
    {"MXQuantizeDequantize", quantized, per_output, kNoInput, 0, kQuark},
    {"QuantizeLinear", quantized | quantizes, per_output, kNoInput, 0, kMicrosoft},
});

}  // namespace

std::span<const OperatorTraits> all_traits() noexcept { return kRows; }

const OperatorTraits& traits_of(const onnx::Node& node) noexcept {
  static constexpr OperatorTraits kUnknown{};
  static constexpr OperatorTable kTable(kRows);
  const auto* found = kTable.find(node);
  return found == nullptr ? kUnknown : *found;
}

std::optional<std::size_t> channel_axis(const onnx::Node& node, std::size_t rank) {
  const auto& traits = traits_of(node);
  if (!traits.is(product) && !traits.is(normalization)) return std::nullopt;
  const bool outputs_first = node.is("Conv") || (node.is("Gemm") && node.int_or("transB", 0) != 0);
  const std::size_t axis = outputs_first ? 0 : 1;
  if (node.is("MatMul") && rank > 2) return std::nullopt;  // each matrix of a batch has channels of its own
  return axis < rank ? std::make_optional(axis) : std::nullopt;
}

}  // namespace detent::graph
