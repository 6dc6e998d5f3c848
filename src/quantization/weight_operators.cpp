#include "quantization/weight_operators.h"

#include <algorithm>
#include <array>

namespace detent::quantization {
namespace {

using enum DynamicWeights;

constexpr auto kRows = std::to_array<WeightOperator>({
    {"Conv", 1, 1, 0, where_named, "ConvInteger", BlockWeights::filter},
    {"ConvTranspose", 1, 1, 0, no, {}, BlockWeights::filter},
    {"GRU", 1, 2, 3, no, {}, BlockWeights::recurrent},
    {"Gather", 0, 1, 2, yes, {}, BlockWeights::table},
    {"Gemm", 1, 1, 2, yes, {}, BlockWeights::product},
    {"LSTM", 1, 2, 3, yes, "DynamicQuantizeLSTM", BlockWeights::recurrent},
    {"MatMul", 1, 1, 2, yes, {}, BlockWeights::product},
    {"MoE", 2, 1, 3, no, {}, BlockWeights::experts},
});

template <class Wanted>
std::vector<std::string> types_where(const Wanted& wanted) {
  std::vector<std::string> types;
  for (const auto& row : kRows) {
    if (wanted(row)) types.emplace_back(row.type);
  }
  return types;
}

}  // namespace

const WeightOperator* weight_operator(const onnx::Node& node) noexcept {
  const auto* const found =
      std::find_if(kRows.begin(), kRows.end(), [&](const auto& row) { return row.type == node.op_type(); });
  const bool is_ours = found != kRows.end() && (node.domain().empty() || found->blocks == BlockWeights::experts);
  return is_ours ? found : nullptr;
}

std::vector<std::string> types_with_dynamic_weights() {
  return types_where([](const auto& row) { return row.dynamic != no; });
}

std::vector<std::string> types_with_block_weights() {
  return types_where([](const auto& row) { return row.blocks != BlockWeights::no; });
}

}  // namespace detent::quantization
