#include <algorithm>
#include <array>
#include <cstddef>

#include "graph/operators.h"
#include "onnx/bodies.h"
#include "onnx/functions.h"
#include "onnx/model.h"

namespace detent::graph {
namespace {

using enum Trait;
using enum Counting;
using enum List;
using enum SumAxes;
using FloatTrait::grows;
using FloatTrait::logarithm;
using FloatTrait::mean;
using FloatTrait::reads_any;
using FloatTrait::root;
using FloatTrait::shares;
using FloatTrait::squares;

using enum DynamicWeights;
using BlockWeights::experts;
using BlockWeights::filter;
using BlockWeights::table;

constexpr auto no_sum = FloatTrait::none;
constexpr auto kNoInput = OperatorTraits::kNoInput;
constexpr auto kNever = FloatRule::kNever;
constexpr std::string_view kMicrosoft = "com.microsoft", kQuark = onnx::kQuarkDomain;
constexpr std::string_view kConvolution = "auto_pad dilations group kernel_shape pads strides";
constexpr std::string_view kLstm =
    "activations activation_alpha activation_beta clip direction hidden_size input_forget layout=0";
constexpr std::string_view kExperts =
    "k activation_type activation_alpha activation_beta swiglu_fusion swiglu_limit use_sparse_mixer "
    "normalize_routing_weights==1";

constexpr WeightOperator kMatrix{1, 1, 2, yes, BlockWeights::product};
constexpr IntegerForm kHandedOn{{}, IntegerInputs::handed_on};
constexpr IntegerForm plain(std::string_view type, std::string_view attributes = {}) {
  return {{type, attributes}, IntegerInputs::plain};
}

// clang-format off
// Columns: {type, traits, counting, bias, opset of 8 bits, domain}, {float16 and bfloat16 from opset, sums, their axes,
// float32 inputs, float32 outputs, divisors, bounds}, lists, operator on integers, weights, deciding inputs, inputs of norms.
constexpr auto kRows = std::to_array<Operator>({
    // Convolutions and matrix products.
    {{"Conv", product | convolution | by_default, macs, 2}, {1, 22}, no_list,
     {{"QLinearConv", kConvolution}, IntegerInputs::product, false},
     {1, 1, 0, where_named, filter, {"ConvInteger", kConvolution}}},
    {{"ConvTranspose", product | convolution | by_default, macs, 2}, {1, 22}, no_list, {}, {1, 1, 0, no, filter}},
    {{"Gemm", product | by_default, macs, 2}, {1, 13}, in_double,
     {{"QGemm", "alpha beta=1 transA transB"}, IntegerInputs::gemm}, kMatrix},
    {{"MatMul", product | by_default, macs}, {1, 13}, in_double, {{"QLinearMatMul"}, IntegerInputs::product, false},
     kMatrix},
    // Recurrent layers multiply as well, but are never quantized.
    {{"GRU", recurrent, macs, 3}, {1, 22}, no_list, {}, {1, 2, 3, no, BlockWeights::recurrent}},
    {{"LSTM", recurrent, macs, 3}, {1, 22}, no_list, {},
     {1, 2, 3, yes, BlockWeights::recurrent, {"DynamicQuantizeLSTM", kLstm}}},
    {{"RNN", recurrent, macs, 3}, {1, 22}},

    // Normalizations, and distributions over an axis.
    {{"BatchNormalization", normalization | by_default, per_input, 2}, {1, 14, no_sum, listed, 0, 0, 0b10000}},
    {{"InstanceNormalization", normalization | by_default, per_input, 2}, {1, 22, squares, spatial}, divides},
    {{"LayerNormalization", normalization | by_default, per_input, 2}, {17, 17, squares, from_axis, 0, 0b110},
     divides | in_double, {}, {}, {}, {1, 2}},
    {{"EmbedLayerNormalization", by_default, per_output, kNoInput, 0, kMicrosoft}, {1, kNever, no_sum, from_axis}},
    {{"LogSoftmax", judged_by_inputs, per_input}, {1, 13, shares, one}, in_double},
    {{"Softmax", by_default | judged_by_inputs, per_input}, {1, 13, shares, one}, in_double,
     plain("QLinearSoftmax", "axis")},

    // Element-wise: with tables of their responses, and without.
    {{"Abs", element_wise | has_response}, {1, 13}, sums | in_double},
    {{"Add", element_wise | joins | carries_integers | by_default | has_response}, {1, 13},
     sums | in_all_opsets | infinities | in_double | openvino_along | adds, plain("QLinearAdd")},
    {{"Celu", element_wise | has_response}, {28, 28}, openvino_alone},
    {{"Clip", element_wise | clips | carries_integers | overwrites | by_default | has_response},
     {1, 13, no_sum, listed, 0, 0, 0, 0b110}, bounds | in_double | openvino_along},
    {{"Div", element_wise | has_response}, {1, 13, no_sum, listed, 0, 0, 0b10}, sums | in_all_opsets | in_double},
    {{"Elu", element_wise | overwrites | has_response}, {1, 22}},
    {{"Erf", element_wise | has_response}, {9, 13}},
    {{"Exp", element_wise | has_response}, {1, 13, grows}, in_double},
    {{"Gelu", element_wise | has_response}, {20, 20}},
    {{"Gelu", element_wise | has_response, per_output, kNoInput, 0, kMicrosoft}, {1, kNever}},
    {{"HardSigmoid", element_wise | overwrites | has_response}, {1, 22}, openvino_own | openvino_alone | gates},
    {{"HardSwish", element_wise | has_response}, {14, 22}},
    {{"LeakyRelu", element_wise | carries_integers | overwrites | by_default | has_response}, {1, 16}, openvino_alone,
     plain("QLinearLeakyRelu", "alpha")},
    {{"Mish", element_wise | has_response}, {18, 22}},
    {{"Mul", element_wise | by_default | has_response}, {1, 13}, sums | in_all_opsets | infinities | in_double,
     plain("QLinearMul")},
    {{"Neg", element_wise | has_response}, {1, 13}, sums | in_double | openvino_own},
    {{"Pow", element_wise | has_response}, {1, 15, grows}, sums | in_double},
    {{"Relu", element_wise | clips | carries_integers | overwrites | by_default | has_response}, {1, 13},
     bounds | in_double | openvino_along},
    {{"Selu", element_wise | has_response}, {1, 22}, openvino_own | openvino_alone},
    {{"Sigmoid", element_wise | overwrites | by_default | has_response}, {1, 13}, in_double | openvino_along | gates,
     plain("QLinearSigmoid")},
    {{"Softplus", element_wise | overwrites | has_response}, {1, 22}, openvino_alone},
    {{"Softsign", element_wise | has_response}, {1, 22}, openvino_own},
    {{"Sqrt", element_wise | has_response}, {1, 13}, in_double},
    {{"Sub", element_wise | has_response}, {1, 13}, sums | in_all_opsets | infinities | in_double | adds},
    {{"Swish", element_wise | has_response}, {24, 24}, openvino_alone},
    {{"Tanh", element_wise | overwrites | has_response}, {1, 13}, in_double},
    {{"ThresholdedRelu", element_wise | has_response}, {10, 22}, openvino_alone},
    {{"Cast", element_wise | overwrites, moves}, {1, 13, reads_any}, sums | in_all_opsets | infinities | openvino_own},
    {{"Ceil", element_wise}, {1, 13}, leaps | in_double},
    {{"Floor", element_wise}, {1, 13}, leaps | in_double},
    {{"Log", element_wise}, {1, 13}, logarithms | in_double | openvino_own | openvino_alone},
    {{"Reciprocal", element_wise}, {1, 13}, divides | in_double},

    // Every value to exactly one place.
    {{"DepthToSpace", rearranges | carries_integers, moves}, {1, 13}, in_double, kHandedOn},
    {{"Flatten", renames | rearranges | shares_scale | carries_integers | by_default | judged_by_inputs, free}, {1, 13},
     infinities | in_double | openvino_moves, kHandedOn},
    {{"Identity", renames | rearranges | judged_by_inputs, free}, {1, 13}, in_all_opsets | infinities | in_double,
     kHandedOn},
    {{"Reshape", renames | rearranges | shares_scale | carries_integers | by_default | judged_by_inputs, free}, {1, 13},
     in_all_opsets | infinities | carries_pairs | in_double | openvino_moves, kHandedOn, {}, {0b10}},
    {{"SpaceToDepth", rearranges | carries_integers, moves}, {1, 13}, in_double, kHandedOn},
    {{"Squeeze", renames | rearranges | shares_scale | carries_integers | by_default | judged_by_inputs, free}, {1, 13},
     infinities | carries_pairs | in_double | openvino_moves, kHandedOn},
    {{"Transpose", rearranges | shares_scale | carries_integers | by_default | judged_by_inputs, moves}, {1, 13},
     in_all_opsets | infinities | carries_pairs | in_double | openvino_moves, kHandedOn},
    {{"Unsqueeze", renames | rearranges | shares_scale | carries_integers | by_default | judged_by_inputs, free},
     {1, 13}, infinities | carries_pairs | in_double | openvino_moves, kHandedOn},

    // Some values of the input, or several times, or those of several inputs.
    {{"Concat", joins | carries_integers | by_default | judged_by_inputs, moves}, {1, 13},
     in_all_opsets | infinities | in_double, {{"QLinearConcat", "axis"}, IntegerInputs::concat}},
    {{"Dropout", renames, moves}, {1, 13, no_sum, listed, 0b110}},
    {{"Expand", shares_scale, moves}, {8, 13}, moves_scores | in_all_opsets | infinities | in_double | openvino_picks,
     kHandedOn, {}, {0b10}},
    {{"Gather", looks_up | shares_scale | carries_integers | by_default, moves}, {1, 13},
     moves_scores | takes_parts | infinities | in_double, kHandedOn, {0, 1, 2, yes, table}, {0, 0b10}},
    {{"GatherElements", shares_scale | carries_integers | by_default, moves}, {11, 13}, takes_parts | in_double, {}, {},
     {0, 0b10}},
    {{"GatherND", none, moves}, {11, 13}, in_double, {}, {}, {0, 0b10}},
    {{"Pad", carries_integers | by_default, moves}, {1, 13}, in_double, {}, {}, {0b10}},
    {{"Resize", shares_scale | carries_integers | by_default, moves, kNoInput, 11}, {10, 13, no_sum, listed, 0b110},
     no_list, {}, {}, {0b1100}},
    {{"ScatterND", none, moves}, {11, 13}, scatters, {}, {}, {0, 0b10}},
    {{"Slice", shares_scale | carries_integers | by_default, moves}, {1, 13},
     moves_scores | takes_parts | infinities | carries_pairs | in_double | openvino_moves, kHandedOn, {}, {0b11110}},
    {{"Split", shares_scale | carries_integers | by_default, moves}, {1, 13},
     moves_scores | takes_parts | infinities | in_double, kHandedOn, {}, {0b10}},
    {{"Tile", shares_scale, moves}, {1, 13}, moves_scores | infinities | in_double | openvino_picks, {}, {}, {0b10}},
    {{"TopK", shares_scale | by_default, per_input}, {}, picks_best, {}, {}, {0b10}},
    {{"Upsample", none, moves}, {}, no_list, {}, {}, {0b10}},
    {{"Where", by_default, moves}, {9, 16}, infinities | in_double, {{"QLinearWhere"}, IntegerInputs::where}},

    // Pooling, reductions and scans.
    {{"ArgMax", by_default, per_input}, {1, 13, reads_any}, leaps | picks_best},
    {{"ArgMin", none, per_input}, {1, 13, reads_any}, leaps | picks_best},
    {{"AveragePool", shares_scale | carries_integers | by_default, per_window}, {1, 22, mean}, averages,
     plain("QLinearAveragePool", "auto_pad ceil_mode count_include_pad dilations=1 kernel_shape pads strides")},
    {{"CumSum", by_default, per_input}, {}, sums},
    {{"GlobalAveragePool", carries_integers | by_default, per_input}, {1, 22, mean, spatial}, averages,
     plain("QLinearGlobalAveragePool")},
    {{"GlobalMaxPool", none, per_input}, {1, 22, no_sum, spatial}, openvino_picks},
    {{"MaxPool", shares_scale | carries_integers | by_default, per_window, kNoInput, 12}, {1, 22},
     carries_pairs | in_double | openvino_picks, kHandedOn},
    {{"ReduceL1", none, per_input}, {1, 13, grows}, sums},
    {{"ReduceL2", none, per_input}, {1, 13, root}, sums},
    {{"ReduceLogSum", none, per_input}, {1, 13, logarithm}, logarithms},
    {{"ReduceLogSumExp", none, per_input}, {1, 13, logarithm}},
    {{"ReduceMax", none, per_input}, {1, 13}, sums | in_double | openvino_picks},
    {{"ReduceMean", none, per_input}, {1, 13, mean}, sums | in_double},
    {{"ReduceMin", none, per_input}, {1, 13}, in_double | openvino_picks},
    {{"ReduceProd", none, per_input}, {1, 13, grows}, in_double},
    {{"ReduceSum", none, per_input}, {1, 13, grows}, sums | in_double},
    {{"ReduceSumSquare", none, per_input}, {1, 13, grows}, sums | in_double},

    // Constants, shapes and chance.
    {{"Constant", none, free}},
    {{"ConstantOfShape", none, moves}, {}, no_list, {}, {}, {0b1}},
    {{"Shape", none, free}, {1, 13, reads_any}, in_double | measures},
    {{"Size", none, moves}, {1, 13, reads_any}, sums | measures},
    {{"Bernoulli", random}},
    {{"Multinomial", random}},
    {{"RandomNormal", random}},
    {{"RandomNormalLike", random}},
    {{"RandomUniform", random}},
    {{"RandomUniformLike", random}},
    {{onnx::kBodyInputs, random, free, kNoInput, 0, onnx::kPrivateDomain}},  // another value at each run of the body

    // What quantized models are made of.
    {{"ConvInteger", quantized}},
    {{"DequantizeLinear", quantized | dequantizes}, {19, 19}},
    {{"DynamicQuantizeLinear", quantized}},
    {{"MatMulInteger", quantized}},
    {{"QLinearConv", quantized, macs}},
    {{"QLinearMatMul", quantized, macs}},
    {{"QuantizeLinear", quantized | quantizes}, {19, 19, no_sum, listed, 0, 0, 0b10}},
    {{"DequantizeLinear", quantized | dequantizes, per_output, kNoInput, 0, kMicrosoft}, {1, kNever}},
    {{"MatMulNBits", quantized, per_output, kNoInput, 0, kMicrosoft}, {1, 1}},
    {{"QGemm", quantized, macs, kNoInput, 0, kMicrosoft}},
    {{"BFPQuantizeDequantize", quantized, per_output, kNoInput, 0, kQuark}},
    {{"MXQuantizeDequantize", quantized, per_output, kNoInput, 0, kQuark}},
    {{"QuantizeLinear", quantized | quantizes, per_output, kNoInput, 0, kMicrosoft},
     {1, kNever, no_sum, listed, 0, 0, 0b10}},

    // Of which no more is known than what 16-bit floats, sizes and targets make of them.
    {{"Acos"}, {7, 22}},
    {{"Acosh"}, {9, 22}},
    {{"AffineGrid"}, {}, no_list, {}, {}, {0b10}},
    {{"Asin"}, {7, 22}},
    {{"Asinh"}, {9, 22}},
    {{"Atan"}, {7, 22}},
    {{"Atanh"}, {9, 22}},
    {{"Attention"}, {23, 23}},
    {{"BlackmanWindow"}, {}, no_list, {}, {}, {0b1}},
    {{"CastLike"}, {}, infinities},
    {{"CausalConvWithState"}, {27, 27}},
    {{"CenterCropPad"}, {18, 18}, no_list, {}, {}, {0b10}},
    {{"Col2Im"}, {18, 18}, no_list, {}, {}, {0b110}},
    {{"Compress"}, {9, 28}, no_list, {}, {}, {0b10}},
    {{"Cos"}, {7, 22}, in_all_opsets | in_double},
    {{"Cosh"}, {9, 22, grows}},
    {{"DFT"}, {}, sums, {}, {}, {0b10}},
    {{"DeformConv"}, {19, 22}},
    {{"Einsum"}, {12, 28}},
    {{"Equal"}, {11, 13}, leaps | in_double},
    {{"GlobalLpPool"}, {1, 22, squares, spatial}},
    {{"Greater"}, {1, 13}, leaps | in_double},
    {{"GreaterOrEqual"}, {12, 16}, leaps},
    {{"GridSample"}, {16, 22}},
    {{"GroupNormalization"}, {18, 18, squares, but_batch}, divides},
    {{"HammingWindow"}, {}, no_list, {}, {}, {0b1}},
    {{"HannWindow"}, {}, no_list, {}, {}, {0b1}},
    {{"Hardmax"}, {1, 13}},
    {{"If"}, {}, no_list, {}, {}, {0b1}},
    {{"IsInf"}, {20, 20, reads_any}, leaps},
    {{"IsNaN"}, {9, 13, reads_any}, leaps},
    {{"LRN"}, {1, 13, squares}},
    {{"Less"}, {1, 13}, leaps | in_double},
    {{"LessOrEqual"}, {12, 16}, leaps},
    {{"LinearAttention"}, {27, 27}},
    {{"Loop"}, {}, no_list, {}, {}, {0b11}},
    {{"LpNormalization"}, {1, 22, squares, one}, divides},
    {{"LpPool"}, {1, 22, squares}},
    {{"Max"}, {}, bounds | in_double},
    {{"MaxUnpool"}, {}, no_list, {}, {}, {0b100, 0b10}},
    {{"Mean"}, {1, 13}},
    {{"MeanVarianceNormalization"}, {}, divides},
    {{"MelWeightMatrix"}, {}, no_list, {}, {}, {0b111}},
    {{"Min"}, {}, bounds | in_double},
    {{"Mod"}, {10, 13}},
    {{"NonMaxSuppression"}, {}, decides_itself, {}, {}, {0b11111}},
    {{"NonZero"}, {9, 13, reads_any}, decides_itself, {}, {}, {0b1}},
    {{"OneHot"}, {9, kNever}, no_list, {}, {}, {0b10}},
    {{"PRelu"}, {1, 16}, in_double},
    {{"RMSNormalization"}, {23, 23, squares, from_axis}, no_list, {}, {}, {}, {1}},
    {{"Range"}, {}, sums, {}, {}, {0b111}},
    {{"ReverseSequence"}, {10, 28}},
    {{"RotaryEmbedding"}, {23, 23}},
    {{"Round"}, {11, 22}, leaps | in_double},
    {{"STFT"}, {}, sums},
    {{"ScatterElements"}, {11, 13}, scatters, {}, {}, {0, 0b10}},
    {{"Sign"}, {9, 13}, leaps | in_double},
    {{"SimplifiedLayerNormalization"}, {1, 1, squares, from_axis, 0, 0b10}, no_list, {}, {}, {}, {1}},
    {{"Sin"}, {7, 22}, in_all_opsets | in_double},
    {{"Sinh"}, {9, 22, grows}},
    {{"Sum"}, {1, 13}, sums | in_double},
    {{"SwiGLU"}, {28, 28}},
    {{"Tan"}, {7, 22}},
    {{"TensorScatter"}, {24, 24}},
    {{"Trilu"}, {14, 14}, moves_scores | infinities},
    {{"Unique"}, {}, decides_itself, {}, {}, {0b1}},
    {{"Attention", none, per_output, kNoInput, 0, kMicrosoft}, {1, kNever}},
    {{"BiasGelu", none, per_output, kNoInput, 0, kMicrosoft}, {1, kNever}},
    {{"FastGelu", none, per_output, kNoInput, 0, kMicrosoft}, {1, 1}},
    {{"FusedMatMul", none, per_output, kNoInput, 0, kMicrosoft}, {1, 1}},
    {{"GatherBlockQuantized", none, per_output, kNoInput, 0, kMicrosoft}, {1, 1}},
    {{"GroupNorm", none, per_output, kNoInput, 0, kMicrosoft}, {1, kNever, squares, but_batch, 0b110}},
    {{"GroupQueryAttention", none, per_output, kNoInput, 0, kMicrosoft}, {1, 1, no_sum, listed, 0b11'0000'0000'0000}},
    {{"MoE", none, per_output, kNoInput, 0, kMicrosoft}, {}, no_list, {}, {2, 1, 3, no, experts, {"QMoE", kExperts}}},
    {{"MultiHeadAttention", none, per_output, kNoInput, 0, kMicrosoft}, {1, kNever}},
    {{"QuickGelu", none, per_output, kNoInput, 0, kMicrosoft}, {1, 1}},
    {{"RotaryEmbedding", none, per_output, kNoInput, 0, kMicrosoft}, {1, 1}},
    {{"SimplifiedLayerNormalization", none, per_output, kNoInput, 0, kMicrosoft}, {}, no_list, {}, {}, {}, {1}},
    {{"SkipGroupNorm", none, per_output, kNoInput, 0, kMicrosoft}, {1, kNever, squares, but_batch, 0b110}},
    {{"SkipLayerNormalization", none, per_output, kNoInput, 0, kMicrosoft}, {1, kNever, squares, from_axis, 0, 0b110},
     no_list, {}, {}, {}, {2, 3, 4}},
    {{"SkipSimplifiedLayerNormalization", none, per_output, kNoInput, 0, kMicrosoft},
     {1, kNever, squares, from_axis, 0, 0b110}, no_list, {}, {}, {}, {2, 0, 3}},
});
// clang-format on

}  // namespace

std::span<const Operator> operators() noexcept { return kRows; }

std::span<const OperatorTraits> all_traits() noexcept {
  static constexpr auto kTraits = [] {
    std::array<OperatorTraits, kRows.size()> traits;
    std::copy(kRows.begin(), kRows.end(), traits.begin());
    return traits;
  }();
  return kTraits;
}

const Operator& operator_of(const onnx::Node& node) noexcept {
  static constexpr Operator kUnknown{};
  static constexpr OperatorTable kTable(kRows);
  const auto* found = kTable.find(node);
  return found == nullptr ? kUnknown : *found;
}

const OperatorTraits& traits_of(const onnx::Node& node) noexcept { return operator_of(node); }

bool is_on(const onnx::Node& node, List list) noexcept {
  return (static_cast<std::uint32_t>(operator_of(node).lists) & static_cast<std::uint32_t>(list)) != 0;
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
