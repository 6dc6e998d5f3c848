#include "quantization/float_rules.h"

#include <array>
#include <functional>
#include <unordered_map>

namespace detent::quantization {
namespace {

using enum FloatTrait;

constexpr auto kNever = FloatRule::kNever;
constexpr std::string_view kMicrosoft = "com.microsoft";

// Columns: type, float16 from opset, bfloat16 from opset, trait, float32 inputs, float32 outputs, divisors, bounds,
// domain. Opsets and masks are those of the schemas of onnx 1.23 (tests/e2e/test_float_rules.py compares them).
constexpr auto kRows = std::to_array<FloatRule>({
    {"Abs", 1, 13},
    {"Acos", 7, 22},
    {"Acosh", 9, 22},
    {"Add", 1, 13},
    {"ArgMax", 1, 13, reads_any},
    {"ArgMin", 1, 13, reads_any},
    {"Asin", 7, 22},
    {"Asinh", 9, 22},
    {"Atan", 7, 22},
    {"Atanh", 9, 22},
    {"Attention", 23, 23},
    {"AveragePool", 1, 22, mean},
    {"BatchNormalization", 1, 14, none, 0, 0, 0b10000},
    {"Cast", 1, 13, reads_any},
    {"CausalConvWithState", 27, 27},
    {"Ceil", 1, 13},
    {"Celu", 28, 28},
    {"CenterCropPad", 18, 18},
    {"Clip", 1, 13, none, 0, 0, 0, 0b110},
    {"Col2Im", 18, 18},
    {"Compress", 9, 28},
    {"Concat", 1, 13},
    {"Conv", 1, 22},
    {"ConvTranspose", 1, 22},
    {"Cos", 7, 22},
    {"Cosh", 9, 22, grows},
    {"DeformConv", 19, 22},
    {"DepthToSpace", 1, 13},
    {"Div", 1, 13, none, 0, 0, 0b10},
    {"Dropout", 1, 13, none, 0b110},
    {"Einsum", 12, 28},
    {"Elu", 1, 22},
    {"Equal", 11, 13},
    {"Erf", 9, 13},
    {"Exp", 1, 13, grows},
    {"Expand", 8, 13},
    {"Flatten", 1, 13},
    {"Floor", 1, 13},
    {"GRU", 1, 22},
    {"Gather", 1, 13},
    {"GatherElements", 11, 13},
    {"GatherND", 11, 13},
    {"Gelu", 20, 20},
    {"Gemm", 1, 13},
    {"GlobalAveragePool", 1, 22, mean},
    {"GlobalLpPool", 1, 22, squares},
    {"GlobalMaxPool", 1, 22},
    {"Greater", 1, 13},
    {"GreaterOrEqual", 12, 16},
    {"GridSample", 16, 22},
    {"GroupNormalization", 18, 18, squares},
    {"HardSigmoid", 1, 22},
    {"HardSwish", 14, 22},
    {"Hardmax", 1, 13},
    {"InstanceNormalization", 1, 22, squares},
    {"Identity", 1, 13},
    {"IsInf", 20, 20, reads_any},
    {"IsNaN", 9, 13, reads_any},
    {"LRN", 1, 13, squares},
    {"LSTM", 1, 22},
    {"LayerNormalization", 17, 17, squares, 0, 0b110},
    {"LeakyRelu", 1, 16},
    {"Less", 1, 13},
    {"LessOrEqual", 12, 16},
    {"LinearAttention", 27, 27},
    {"Log", 1, 13},
    {"LogSoftmax", 1, 13, shares},
    {"LpNormalization", 1, 22, squares},
    {"LpPool", 1, 22, squares},
    {"MatMul", 1, 13},
    {"MaxPool", 1, 22},
    {"Mean", 1, 13},
    {"MeanVarianceNormalization", 9, 13, squares},
    {"Mish", 18, 22},
    {"Mod", 10, 13},
    {"Mul", 1, 13},
    {"Neg", 1, 13},
    {"NonZero", 9, 13, reads_any},
    {"OneHot", 9, kNever},
    {"PRelu", 1, 16},
    {"Pad", 1, 13},
    {"Pow", 1, 15, grows},
    {"RMSNormalization", 23, 23, squares},
    {"RNN", 1, 22},
    {"Reciprocal", 1, 13},
    {"ReduceL1", 1, 13, grows},
    {"ReduceL2", 1, 13, root},
    {"ReduceLogSum", 1, 13, logarithm},
    {"ReduceLogSumExp", 1, 13, logarithm},
    {"ReduceMax", 1, 13},
    {"ReduceMean", 1, 13, mean},
    {"ReduceMin", 1, 13},
    {"ReduceProd", 1, 13, grows},
    {"ReduceSum", 1, 13, grows},
    {"ReduceSumSquare", 1, 13, grows},
    {"Relu", 1, 13},
    {"Reshape", 1, 13},
    {"Resize", 10, 13, none, 0b110},
    {"ReverseSequence", 10, 28},
    {"RotaryEmbedding", 23, 23},
    {"Round", 11, 22},
    {"ScatterElements", 11, 13},
    {"ScatterND", 11, 13},
    {"Selu", 1, 22},
    {"Shape", 1, 13, reads_any},
    {"Sigmoid", 1, 13},
    {"Sign", 9, 13},
    {"Sin", 7, 22},
    {"Sinh", 9, 22, grows},
    {"Size", 1, 13, reads_any},
    {"Slice", 1, 13},
    {"Softmax", 1, 13, shares},
    {"Softplus", 1, 22},
    {"Softsign", 1, 22},
    {"SpaceToDepth", 1, 13},
    {"Split", 1, 13},
    {"Sqrt", 1, 13},
    {"Squeeze", 1, 13},
    {"Sub", 1, 13},
    {"Sum", 1, 13},
    {"SwiGLU", 28, 28},
    {"Swish", 24, 24},
    {"Tan", 7, 22},
    {"Tanh", 1, 13},
    {"TensorScatter", 24, 24},
    {"ThresholdedRelu", 10, 22},
    {"Tile", 1, 13},
    {"Transpose", 1, 13},
    {"Trilu", 14, 14},
    {"Unsqueeze", 1, 13},
    {"Where", 9, 16},
    {"SimplifiedLayerNormalization", 1, 1, squares, 0, 0b10},

    {"Attention", 1, kNever, none, 0, 0, 0, 0, kMicrosoft},
    {"BiasGelu", 1, kNever, none, 0, 0, 0, 0, kMicrosoft},
    {"EmbedLayerNormalization", 1, kNever, none, 0, 0, 0, 0, kMicrosoft},
    {"FastGelu", 1, 1, none, 0, 0, 0, 0, kMicrosoft},
    {"FusedMatMul", 1, 1, none, 0, 0, 0, 0, kMicrosoft},
    {"Gelu", 1, kNever, none, 0, 0, 0, 0, kMicrosoft},
    {"GroupNorm", 1, kNever, squares, 0b110, 0, 0, 0, kMicrosoft},
    {"GroupQueryAttention", 1, 1, none, 0b11'0000'0000'0000, 0, 0, 0, kMicrosoft},
    {"MatMulNBits", 1, 1, none, 0, 0, 0, 0, kMicrosoft},
    {"MultiHeadAttention", 1, kNever, none, 0, 0, 0, 0, kMicrosoft},
    {"QuickGelu", 1, 1, none, 0, 0, 0, 0, kMicrosoft},
    {"RotaryEmbedding", 1, 1, none, 0, 0, 0, 0, kMicrosoft},
    {"SkipGroupNorm", 1, kNever, squares, 0b110, 0, 0, 0, kMicrosoft},
    {"SkipLayerNormalization", 1, kNever, squares, 0, 0b110, 0, 0, kMicrosoft},
    {"SkipSimplifiedLayerNormalization", 1, kNever, squares, 0, 0b110, 0, 0, kMicrosoft},
});

struct Key {
  std::string_view domain, type;
  friend bool operator==(const Key&, const Key&) = default;
};

struct Hash {
  std::size_t operator()(const Key& key) const noexcept {
    const std::hash<std::string_view> hash;
    return hash(key.type) * 31 + hash(key.domain);
  }
};

}  // namespace

const FloatRule* float_rule(const onnx::Node& node) noexcept {
  static const auto kByType = [] {
    std::unordered_map<Key, const FloatRule*, Hash> rows;
    for (const auto& row : kRows) rows.emplace(Key{row.domain, row.type}, &row);
    return rows;
  }();
  const auto found = kByType.find({node.domain(), node.op_type()});
  return found == kByType.end() ? nullptr : found->second;
}

}  // namespace detent::quantization
