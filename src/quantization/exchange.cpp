#include "quantization/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace detent::quantization {
namespace {

using onnx::Attribute;
using onnx::Node;

// An attribute that the other operator honours: with any value, or with one alone (each number of a list).
struct Row {
  std::string_view to, attribute;
  std::optional<std::int64_t> only = {};
  std::int64_t otherwise = 0;  // what the node means where it has no such attribute
};

// As ONNX Runtime's CPU kernels compute, tested over all values (tests/e2e/test_exchanged_operators.py).
constexpr Row kRows[] = {
    {"QMoE", "k"},
    {"QMoE", "activation_type"},
    {"QMoE", "activation_alpha"},
    {"QMoE", "activation_beta"},
    {"QMoE", "swiglu_fusion"},
    {"QMoE", "swiglu_limit"},
    {"QMoE", "use_sparse_mixer"},
    {"QMoE", "normalize_routing_weights", 1},
    {"DynamicQuantizeLSTM", "activations"},
    {"DynamicQuantizeLSTM", "activation_alpha"},
    {"DynamicQuantizeLSTM", "activation_beta"},
    {"DynamicQuantizeLSTM", "clip"},
    {"DynamicQuantizeLSTM", "direction"},
    {"DynamicQuantizeLSTM", "hidden_size"},
    {"DynamicQuantizeLSTM", "input_forget"},
    {"DynamicQuantizeLSTM", "layout", 0},
    {"ConvInteger", "auto_pad"},
    {"ConvInteger", "dilations"},
    {"ConvInteger", "group"},
    {"ConvInteger", "kernel_shape"},
    {"ConvInteger", "pads"},
    {"ConvInteger", "strides"},
    {"QLinearConv", "auto_pad"},
    {"QLinearConv", "dilations"},
    {"QLinearConv", "group"},
    {"QLinearConv", "kernel_shape"},
    {"QLinearConv", "pads"},
    {"QLinearConv", "strides"},
    {"QGemm", "alpha"},
    {"QGemm", "beta", 1, 1},
    {"QGemm", "transA"},
    {"QGemm", "transB"},
    {"QLinearLeakyRelu", "alpha"},
    {"QLinearSoftmax", "axis"},
    {"QLinearAveragePool", "auto_pad"},
    {"QLinearAveragePool", "ceil_mode"},
    {"QLinearAveragePool", "count_include_pad"},
    {"QLinearAveragePool", "dilations", 1, 1},
    {"QLinearAveragePool", "kernel_shape"},
    {"QLinearAveragePool", "pads"},
    {"QLinearAveragePool", "strides"},
    {"QLinearConcat", "axis"},
};

bool holds_only(const Attribute& attribute, std::int64_t value) {
  switch (attribute.kind()) {
    case Attribute::Kind::i: return attribute.as_int() == value;
    case Attribute::Kind::f: return attribute.as_float() == static_cast<float>(value);
    case Attribute::Kind::ints: {
      const auto all = attribute.as_ints();
      return std::all_of(all.begin(), all.end(), [&](auto v) { return v == value; });
    }
    default: return false;
  }
}

}  // namespace

std::string reason_against_exchange(const Node& node, std::string_view to) {
  const auto row_of = [&](const Attribute& attribute) {
    return std::find_if(std::begin(kRows), std::end(kRows),
                        [&](const Row& row) { return row.to == to && row.attribute == attribute.name(); });
  };
  for (const auto& attribute : node.attributes()) {
    const auto row = row_of(attribute);
    if (row == std::end(kRows)) return fmt::format("{} has no '{}'", to, attribute.name());
    if (row->only && !holds_only(attribute, *row->only))
      return fmt::format("{} computes as if {} were {}", to, row->attribute, *row->only);
  }
  for (const auto& row : kRows) {
    if (row.to != to || !row.only || row.otherwise == *row.only) continue;
    const auto& all = node.attributes();
    const bool given = std::any_of(all.begin(), all.end(), [&](const auto& a) { return a.name() == row.attribute; });
    if (!given) return fmt::format("{} computes as if {} were {}", to, row.attribute, *row.only);
  }
  return {};
}

}  // namespace detent::quantization
