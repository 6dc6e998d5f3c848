#include "checking/signature.h"

#include <algorithm>

#include "graph/traits.h"
#include "onnx/quark.h"

namespace detent::checking {
namespace {

using graph::kNone;

const onnx::Node& at(const onnx::Model& model, int node) { return model.graph.nodes[static_cast<std::size_t>(node)]; }

bool is(const onnx::Node& node, std::string_view op_type) {
  return node.op_type() == op_type && (node.domain().empty() || node.domain() == "com.microsoft");
}

const onnx::Tensor* constant(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int i = index.initializer(value);
  return i == kNone ? nullptr : &model.graph.initializers[static_cast<std::size_t>(i)];
}

struct Kind {
  std::string_view text;
  std::int64_t middle;
};

Kind kind_of(onnx::DataType type) {
  switch (type) {
    case onnx::DataType::uint8: return {"u8", 128};
    case onnx::DataType::int8: return {"s8", 0};
    case onnx::DataType::uint16: return {"u16", 32768};
    case onnx::DataType::int16: return {"s16", 0};
    case onnx::DataType::uint4: return {"u4", 8};
    case onnx::DataType::int4: return {"s4", 0};
    default: return {"other", 0};
  }
}

// The form that a QuantizeLinear or DequantizeLinear gives, by its scale and zero point.
Form form_by(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  Form form;
  const auto& inputs = node.inputs();
  const auto* scale = inputs.size() > 1 ? constant(model, index, inputs[1]) : nullptr;
  const auto* zero = inputs.size() > 2 ? constant(model, index, inputs[2]) : nullptr;
  const auto* stored = inputs.empty() ? nullptr : constant(model, index, inputs[0]);
  const auto type = zero != nullptr ? zero->type : stored != nullptr ? stored->type : onnx::DataType::uint8;
  const auto [text, middle] = kind_of(type);
  if (scale != nullptr) form.scales = onnx::to_doubles(*scale);
  const bool has_integers = zero != nullptr && text != "other";
  const auto zeros = has_integers ? onnx::to_int64s(*zero) : std::vector<std::int64_t>{0};
  const bool centred = std::all_of(zeros.begin(), zeros.end(), [m = middle](std::int64_t z) { return z == m; });
  form.zero_point = zeros.empty() ? 0 : zeros.front();
  form.text = std::string(text) + (centred ? "=" : "");
  if (stored == nullptr || !is(node, "DequantizeLinear")) return form;
  form.is_constant = true;
  const bool blocks = node.int_or("block_size", 0) > 0;
  form.text += blocks ? "/b" : form.scales.size() > 1 ? "/c" : "/t";
  return form;
}

Form form_of_output(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const auto readers = index.consumers(value);
  if (index.is_output(value) || readers.empty()) return {};
  for (const int reader : readers) {
    if (!is(at(model, reader), "QuantizeLinear")) return {};
  }
  return form_by(model, index, at(model, readers.front()));
}

// The only reader of a value, or kNone.
int only_reader(const graph::Index& index, const std::string& value) {
  const auto readers = index.consumers(value);
  return readers.size() == 1 && !index.is_output(value) ? readers.front() : kNone;
}

// What makes the first input of a node, if that alone reads it.
const onnx::Node* maker_for(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  if (node.inputs().empty() || only_reader(index, node.inputs().front()) == kNone) return nullptr;
  const int maker = index.producer(node.inputs().front());
  return maker == kNone ? nullptr : &at(model, maker);
}

}  // namespace

Form form_of_input(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, std::size_t i) {
  if (i >= node.inputs().size() || node.inputs()[i].empty()) return {"-"};
  const int maker = index.producer(node.inputs()[i]);
  if (maker != kNone && at(model, maker).domain() == onnx::kQuarkDomain) {
    const bool is_constant = index.initializer(at(model, maker).inputs().front()) != kNone;
    return {"bf", is_constant};
  }
  if (maker != kNone && is(at(model, maker), "DequantizeLinear")) return form_by(model, index, at(model, maker));
  Form form;
  form.is_constant = index.initializer(node.inputs()[i]) != kNone;
  return form;
}

bool fuses_with_product(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  const auto* maker = graph::has_trait(node, graph::Trait::clips) ? maker_for(model, index, node) : nullptr;
  return maker != nullptr && graph::is_product(*maker);
}

bool fuses_with_maker(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                      const config::Target& target) {
  if (!graph::has_trait(node, graph::Trait::clips) && !target.has_activation(node.op_type())) return false;
  const auto* maker = maker_for(model, index, node);
  return maker != nullptr && (graph::is_product(*maker) || target.runs_activation_along(maker->op_type()));
}

Signature signature_of(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                       const config::Target& target) {
  const std::size_t from = is(node, "Where") ? 1 : 0;
  Signature forms{form_of_input(model, index, node, from), form_of_input(model, index, node, from + 1), {}};
  if (node.outputs().empty()) return forms;
  forms.output = form_of_output(model, index, node.outputs().front());
  const int reader = only_reader(index, node.outputs().front());
  if (forms.output.text == "f32" && reader != kNone && fuses_with_maker(model, index, at(model, reader), target))
    forms.output = form_of_output(model, index, at(model, reader).outputs().front());
  return forms;
}

}  // namespace detent::checking
