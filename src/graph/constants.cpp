#include "graph/constants.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "graph/operators.h"
#include "graph/traits.h"

namespace detent::graph {
namespace {

bool is_floating(onnx::DataType type) {
  return type == onnx::DataType::float32 || type == onnx::DataType::float16 || type == onnx::DataType::bfloat16 ||
         type == onnx::DataType::float64;
}

using FindConstant = const onnx::Tensor* (*)(const onnx::Model&, const Index&, const std::string&);

std::optional<ConstantStep> step_of(const onnx::Model& model, const Index& index, const onnx::Node& node,
                                    FindConstant find) {
  ConstantStep step;
  step.inverse = node.is("Div") || node.is("Sub");
  step.multiplies = node.is("Div") || node.is("Mul");
  if (!step.inverse && !node.is("Add") && !node.is("Mul")) return std::nullopt;
  for (const std::size_t input : {1, 0}) {
    step.constant = find(model, index, node.inputs()[input]);
    step.value = node.inputs()[1 - input];
    if (step.constant != nullptr && index.initializer(step.value) == kNone) return step;
    if (step.inverse) break;  // a constant minus the value, or divided by it
  }
  return std::nullopt;
}

}  // namespace

const onnx::Tensor* float32_constant(const onnx::Model& model, const Index& index, const std::string& name) {
  const int i = index.initializer(name);
  if (i == kNone) return nullptr;
  const auto& tensor = model.graph.initializers[static_cast<std::size_t>(i)];
  return tensor.type == onnx::DataType::float32 ? &tensor : nullptr;
}

const onnx::Tensor* float32_constant(const onnx::Model& model, const Index& index, const onnx::Node& node,
                                     std::size_t input) {
  return input < node.inputs().size() ? float32_constant(model, index, node.inputs()[input]) : nullptr;
}

const onnx::Tensor* any_float_constant(const onnx::Model& model, const Index& index, const std::string& name) {
  const int i = index.initializer(name);
  if (i == kNone) return nullptr;
  const auto& tensor = model.graph.initializers[static_cast<std::size_t>(i)];
  return is_floating(tensor.type) ? &tensor : nullptr;
}

std::optional<double> constant_of_shape_value(const onnx::Model& model, const onnx::Node& node) {
  if (!node.is("ConstantOfShape")) return std::nullopt;
  const auto* value = node.attribute("value");
  if (value == nullptr) return 0.0;
  const auto tensor = onnx::read_attribute_tensor(model, node, *value);
  return is_floating(tensor.type) && tensor.count() == 1 ? std::optional(onnx::to_doubles(tensor).front())
                                                         : std::nullopt;
}

std::vector<float> floats_of(const onnx::Tensor& tensor) {
  const auto bytes = tensor.data.bytes();
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
  return out;
}

std::vector<float> transposed(const std::vector<float>& values, const std::vector<std::int64_t>& shape,
                              const std::vector<std::int64_t>& axes) {
  std::vector<std::int64_t> strides(shape.size(), 1), dims, steps, at(axes.size());
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  for (const auto axis : axes) {
    dims.push_back(shape[static_cast<std::size_t>(axis)]);
    steps.push_back(strides[static_cast<std::size_t>(axis)]);
  }
  std::vector<float> out;
  out.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    out.push_back(
        values[static_cast<std::size_t>(std::inner_product(at.begin(), at.end(), steps.begin(), std::int64_t{0}))]);
    for (std::size_t d = dims.size(); d-- > 0 && ++at[d] == dims[d];) at[d] = 0;
  }
  return out;
}

onnx::Tensor stored_floats(const std::string& name, std::vector<std::int64_t> dims, const std::vector<float>& values,
                           const Store& store) {
  const auto bytes = std::as_bytes(std::span(values));
  return {name, onnx::DataType::float32, std::move(dims), store({bytes.begin(), bytes.end()}), {}, false};
}

int only_reader(const Index& index, const std::string& value) {
  const auto readers = index.consumers(value);
  return readers.size() == 1 && !index.is_output(value) && !index.is_captured(value) ? readers.front() : kNone;
}

std::vector<double> ConstantStep::values() const {
  std::vector<double> all;
  for (const double v : onnx::to_doubles(*constant))
    all.push_back(multiplies ? (inverse ? 1 / v : v) : (inverse ? -v : v));
  return all;
}

std::optional<ConstantStep> float32_constant_step(const onnx::Model& model, const Index& index,
                                                  const onnx::Node& node) {
  return step_of(model, index, node, float32_constant);
}

std::optional<ConstantStep> any_float_constant_step(const onnx::Model& model, const Index& index,
                                                    const onnx::Node& node) {
  return step_of(model, index, node, any_float_constant);
}

std::optional<double> scalar_of(const ConstantStep& step, std::size_t rank) {
  if (step.constant->count() != 1 || step.constant->dims.size() > rank) return std::nullopt;
  return step.values().front();
}

std::optional<ScalarStep> scalar_step(const onnx::Model& model, const Index& index, const ValueTypes& types,
                                      const onnx::Node& node) {
  const auto step = float32_constant_step(model, index, node);
  const auto rank = step ? rank_of(types, step->value) : std::nullopt;
  const auto number = rank ? scalar_of(*step, *rank) : std::nullopt;
  return number ? std::make_optional(ScalarStep{step->value, *number, step->multiplies}) : std::nullopt;
}

void remove_nodes(onnx::Model& model, const std::vector<bool>& removed) {
  std::vector<onnx::Node> kept;
  for (std::size_t n = 0; n < removed.size(); ++n) {
    if (!removed[n]) kept.push_back(std::move(model.graph.nodes[n]));
  }
  model.graph.nodes = std::move(kept);
}

const Store& in_memory() {
  static const Store kStore = [](std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); };
  return kStore;
}

const ValueTypes& Rewriter::no_types() {
  static const ValueTypes kNoTypes;
  return kNoTypes;
}

const onnx::Tensor* Rewriter::constant(const std::string& name) const {
  const int at = index_.initializer(name);
  return at == kNone ? nullptr : &model_.graph.initializers[static_cast<std::size_t>(at)];
}

const onnx::Tensor* Rewriter::constant(const onnx::Node& node, std::size_t input) const {
  return input < node.inputs().size() ? constant(node.inputs()[input]) : nullptr;
}

const onnx::Tensor* Rewriter::floats(const onnx::Node& node, std::size_t input) const {
  return float32_constant(model_, index_, node, input);
}

bool Rewriter::is_float32(const std::string& value) const {
  const auto found = types_.find(value);
  return found != types_.end() && found->second.type == onnx::DataType::float32;
}

std::string Rewriter::add(const std::string& wanted, std::vector<std::int64_t> dims, const std::vector<float>& values) {
  added_.push_back(stored_floats(fresh(wanted), std::move(dims), values, store_));
  return added_.back().name;
}

std::string Rewriter::add_ints(const std::string& wanted, const std::vector<std::int64_t>& values) {
  added_.push_back(onnx::make_tensor<std::int64_t>(fresh(wanted), onnx::DataType::int64,
                                                   {static_cast<std::int64_t>(values.size())}, values));
  return added_.back().name;
}

std::string Rewriter::add(const onnx::Node& beside, const std::string& type, const std::string& name,
                          std::vector<std::string> inputs, const std::string& output,
                          std::vector<onnx::Attribute> attributes) {
  nodes_.emplace_back(type, name, std::move(inputs), std::vector{output}, std::move(attributes));
  nodes_.back().set_body(beside.body());
  return output;
}

std::string Rewriter::put(const onnx::Node& beside, const std::string& type, std::vector<std::string> inputs,
                          std::vector<onnx::Attribute> attributes) {
  const auto name = fresh(beside.id() + "_" + type);
  return add(beside, type, name, std::move(inputs), fresh(name + "_result"), std::move(attributes));
}

void Rewriter::exchange(onnx::Node& node, const std::string& type, std::vector<std::string> inputs,
                        std::vector<onnx::Attribute> attributes, const std::string& domain) {
  onnx::Node made(type, node.name(), std::move(inputs), {node.outputs().front()}, std::move(attributes), domain);
  made.set_body(node.body());
  node = std::move(made);
}

void Rewriter::move_constants_to_model() {
  std::move(added_.begin(), added_.end(), std::back_inserter(model_.graph.initializers));
  added_.clear();
}

Notes Rewriter::finish(std::size_t count, std::string line) {
  if (count == 0) return {};
  if (std::find(removed_.begin(), removed_.end(), true) != removed_.end()) remove_nodes(model_, removed_);
  move_constants_to_model();
  return finished(model_, count, std::move(line));
}

Notes finished(onnx::Model& model, std::size_t count, std::string line) {
  if (count == 0) return {};
  drop_unused_initializers(model);
  return {std::move(line)};
}

namespace {

bool takes_parts(const onnx::Node& node) { return is_on(node, List::takes_parts); }

bool moves(const onnx::Node& node) {
  return takes_parts(node) || node.is("Concat") || node.is("Cast") || has_trait(node, Trait::rearranges);
}

}  // namespace

Moved moved_from(const onnx::Model& model, const Index& index, const std::string& value) {
  Moved moved;
  std::vector<std::string> open{value};
  while (!open.empty()) {
    const auto name = std::move(open.back());
    open.pop_back();
    moved.parts = moved.parts || index.is_output(name);
    for (const int reader : index.consumers(name)) {
      const auto r = static_cast<std::size_t>(reader);
      const auto& node = model.graph.nodes[r];
      if (!moves(node) || !moved.nodes.insert(r).second) continue;
      moved.parts = moved.parts || takes_parts(node);
      open.insert(open.end(), node.outputs().begin(), node.outputs().end());
    }
  }
  return moved;
}

}  // namespace detent::graph
