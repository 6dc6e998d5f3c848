#include "checking/ort_rules.h"

#include <algorithm>
#include <optional>

#include "checking/signature.h"

namespace detent::checking {
namespace {

using graph::kNone;

const onnx::Node& at(const onnx::Model& model, int n) { return model.graph.nodes[static_cast<std::size_t>(n)]; }

// Who reads a value but for its shape, which is known before the model runs.
std::size_t readers(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const auto all = index.consumers(value);
  const auto reads = [&](int n) { return !at(model, n).is("Shape"); };
  return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), reads)) + (index.is_output(value) ? 1 : 0);
}

// Who reads what a QuantizeLinear made, behind the DequantizeLinears.
std::size_t times_dequantized(const onnx::Model& model, const graph::Index& index, const std::string& integers) {
  std::size_t times = index.is_output(integers) ? 1 : 0;
  for (const int reader : index.consumers(integers)) {
    const auto& node = at(model, reader);
    if (!node.is("DequantizeLinear") || node.outputs().empty()) return 2;  // on integers
    times += readers(model, index, node.outputs().front());
  }
  return times;
}

// Whether int8 values of a QuantizeLinear stay so.
bool stays(const onnx::Model& model, const graph::Index& index, const std::string& integers) {
  return times_dequantized(model, index, integers) > 1;
}

// Of an input in 8 bits with a sign: whether it stays so; nothing: it is another, or a constant.
std::optional<bool> read_stays(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                               std::size_t i) {
  const auto form = read_form(model, index, node, i);
  if (form.is_constant || !form.text.starts_with("s8")) return std::nullopt;
  return stays(model, index, at(model, index.producer(node.inputs()[i])).inputs().front());
}

std::optional<bool> made_stays(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  if (node.outputs().empty()) return std::nullopt;
  for (const int reader : index.consumers(node.outputs().front())) {
    const auto& quantizer = at(model, reader);
    if (quantizer.is("QuantizeLinear")) return stays(model, index, quantizer.outputs().front());
    const auto behind =
        fuses_with_product(model, index, quantizer) ? made_stays(model, index, quantizer) : std::nullopt;
    if (behind) return behind;
  }
  return std::nullopt;
}

}  // namespace

bool mixes_signs(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  const auto made = made_stays(model, index, node);
  if (!made) return false;
  const bool wants_uint8 = node.is("Conv") || node.is("MatMul");
  for (std::size_t i = 0; i < node.inputs().size(); ++i) {
    const auto read = read_stays(model, index, node, i);
    if (read && (*read != *made || (*read && wants_uint8))) return true;
  }
  return false;
}

}  // namespace detent::checking
