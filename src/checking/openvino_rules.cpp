#include "checking/openvino_rules.h"

#include <algorithm>
#include <array>

namespace detent::checking {
namespace {

using graph::kNone;

const onnx::Node& at(const onnx::Model& model, int n) { return model.graph.nodes[static_cast<std::size_t>(n)]; }

bool has_8_bits(const Form& form) { return form.text.starts_with("u8") || form.text.starts_with("s8"); }

bool is_product(const onnx::Node& node) { return node.is("Conv") || node.is("MatMul") || node.is("Gemm"); }

// A pool that takes every n-th value is put in front of it, between the integers and their scale.
bool is_strided_point(const onnx::Node& node, const onnx::Model& model, const graph::Index& index) {
  const auto* strides = node.attribute("strides");
  if (!node.is("Conv") || strides == nullptr || node.inputs().size() < 2) return false;
  const auto steps = strides->as_ints();
  if (std::none_of(steps.begin(), steps.end(), [](auto s) { return s > 1; })) return false;
  std::string weight = node.inputs()[1];
  if (const int maker = index.producer(weight); maker != kNone) {
    if (at(model, maker).inputs().empty()) return false;
    weight = at(model, maker).inputs().front();
  }
  const int stored = index.initializer(weight);
  if (stored == kNone) return false;
  const auto& dims = model.graph.initializers[static_cast<std::size_t>(stored)].dims;
  return dims.size() > 2 && std::all_of(dims.begin() + 2, dims.end(), [](auto d) { return d == 1; });
}

// The node that makes a value, if nothing else reads that, also behind a pair.
int only_read_maker(const onnx::Model& model, const graph::Index& index, std::string value, bool behind_pair) {
  while (!value.empty() && index.consumers(value).size() == 1 && !index.is_output(value)) {
    const int maker = index.producer(value);
    if (maker == kNone) return kNone;
    const auto& node = at(model, maker);
    if (!node.is("DequantizeLinear") && !node.is("QuantizeLinear")) return maker;
    if (!behind_pair || node.inputs().empty()) return kNone;
    value = node.inputs().front();
  }
  return kNone;
}

// A matrix product takes a bias along, a convolution any sum.
bool takes_along(const onnx::Node& product, const onnx::Node& node, const graph::Index& index) {
  if (!node.is("Add") || product.is("Conv")) return true;
  return std::any_of(node.inputs().begin(), node.inputs().end(),
                     [&](const auto& value) { return index.initializer(value) != kNone; });
}

// The scale moves behind all that only move values.
bool moves_values(const onnx::Node& node) {
  constexpr std::array<std::string_view, 6> kTypes{"Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"};
  return std::find(kTypes.begin(), kTypes.end(), node.op_type()) != kTypes.end();
}

}  // namespace

std::optional<Beyond> beyond_table(const onnx::Node& node, const onnx::Model& model, const graph::Index& index,
                                   const Forms& forms) {
  const bool is_quantized = has_8_bits(forms.first), second = has_8_bits(forms.second);
  const bool output = has_8_bits(forms.output);
  if (is_quantized && is_strided_point(node, model, index))
    return Beyond{"float32", "OpenVINO puts a pool before 1x1 convolutions with strides, and then computes in float",
                  "strides of 1, behind a MaxPool of one value with these strides"};
  const bool both = is_quantized && second;
  if (node.is("Add") && both) return Beyond{"int8", "Add of integers of 8 bits", ""};
  if (node.is("Mul") && both && output) return Beyond{"int8", "Mul of integers of 8 bits", ""};
  if (node.is("Concat") && output) return Beyond{"int8", "Concat between integers of 8 bits", ""};
  if (node.is("Transpose") && output) return Beyond{"int8", "Transpose between integers of 8 bits", ""};
  return std::nullopt;
}

int runs_along_with(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  if (moves_values(node) && !node.inputs().empty()) {
    const int maker = only_read_maker(model, index, node.inputs().front(), false);
    return maker != kNone && moves_values(at(model, maker)) ? maker : kNone;
  }
  constexpr std::array<std::string_view, 4> kTypes{"Add", "Relu", "Clip", "Sigmoid"};
  if (std::find(kTypes.begin(), kTypes.end(), node.op_type()) == kTypes.end()) return kNone;
  for (const auto& value : node.inputs()) {
    const int maker = only_read_maker(model, index, value, node.is("Add"));
    if (maker == kNone) continue;
    const auto& before = at(model, maker);
    if (is_product(before) && takes_along(before, node, index)) return maker;
    if (!node.is("Add") && before.is("Add") && runs_along_with(model, index, before) != kNone) return maker;
  }
  return kNone;
}

}  // namespace detent::checking
