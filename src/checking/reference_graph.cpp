#include "checking/reference_graph.h"

#include <algorithm>
#include <utility>

#include "onnx/write.h"

namespace detent::checking {
namespace {

using onnx::DataType;

}  // namespace

ReferenceGraph::ReferenceGraph(const onnx::Model& model, const graph::ValueTypes& types)
    : model_(model), types_(types), index_(model) {
  for (const auto& input : model.graph.inputs) floats_.insert(input.name);
  for (const auto& tensor : model.graph.initializers) floats_.insert(tensor.name);
}

const onnx::Tensor* ReferenceGraph::constant(const std::string& value) const {
  const int i = index_.initializer(value);
  return i == graph::kNone ? nullptr : &model_.graph.initializers[static_cast<std::size_t>(i)];
}

bool ReferenceGraph::is_float(const std::string& value) const {
  return graph::type_of(model_, types_, value) == DataType::float32;
}

std::optional<std::size_t> ReferenceGraph::rank_of(const std::string& value) const {
  if (const auto* tensor = constant(value)) return tensor->dims.size();
  return graph::rank_of(types_, value);
}

std::string ReferenceGraph::add(const std::string& op_type, std::vector<std::string> inputs, const std::string& wanted,
                                std::vector<onnx::Attribute> attributes) {
  auto name = index_.fresh_name(wanted);
  nodes_.emplace_back(op_type, name, std::move(inputs), std::vector{name}, std::move(attributes));
  return name;
}

std::string ReferenceGraph::constant_doubles(const std::string& wanted, std::vector<std::int64_t> dims,
                                             const std::vector<double>& values) {
  auto name = index_.fresh_name(wanted);
  model_.graph.initializers.push_back(
      onnx::make_tensor<double>(name, DataType::float64, std::move(dims), std::span<const double>(values)));
  return name;
}

std::string ReferenceGraph::constant_ints(const std::string& wanted, const std::vector<std::int64_t>& values) {
  auto name = index_.fresh_name(wanted);
  model_.graph.initializers.push_back(onnx::make_tensor<std::int64_t>(
      name, DataType::int64, {static_cast<std::int64_t>(values.size())}, std::span<const std::int64_t>(values)));
  return name;
}

std::string ReferenceGraph::cast(const std::string& value, DataType to, const std::string& wanted) {
  return add("Cast", {value}, wanted, {onnx::Attribute::of_int("to", static_cast<std::int64_t>(to))});
}

const Integers* ReferenceGraph::integers(const std::string& value) const {
  const auto found = integers_.find(value);
  return found == integers_.end() ? nullptr : &found->second;
}

std::string ReferenceGraph::dequantized(const std::string& value) {
  if (const auto found = doubles_.find(value); found != doubles_.end()) return found->second;
  std::string made;
  if (const auto* of = integers(value)) {
    made = scaled(double_without_zero_point(value), of->scales, static_cast<std::size_t>(of->axis), of->rank,
                  value + "@double");
  } else {
    made = cast(value, DataType::float64, value + "@double");
  }
  doubles_[value] = made;
  return made;
}

void ReferenceGraph::need_float(const std::string& value) {
  if (value.empty() || !floats_.insert(value).second) return;
  if (const auto* of = integers(value)) {
    nodes_.push_back(*of->node);
  } else if (const auto found = doubles_.find(value); found != doubles_.end()) {
    nodes_.emplace_back("Cast", "", std::vector{found->second}, std::vector{value},
                        std::vector{onnx::Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32))});
  }
}

std::string ReferenceGraph::without_zero_point(const std::string& value) {
  if (const auto found = centred_.find(value); found != centred_.end()) return found->second;
  const Integers& of = integers_.at(value);
  const auto& inputs = of.node->inputs();
  std::string made;
  if (of.type == DataType::int32) {
    made = cast(inputs[0], DataType::float64, value + "@centred");
  } else {
    // Steps of one: the runtime's own operator subtracts the zero points, for all types and axes.
    const std::vector<float> ones(of.scales.size(), 1.0F);
    const auto scale = index_.fresh_name(value + "@ones");
    const auto* given = constant(inputs[1]);
    model_.graph.initializers.push_back(
        onnx::make_tensor<float>(scale, DataType::float32, given->dims, std::span<const float>(ones)));
    onnx::Node node = *of.node;
    made = index_.fresh_name(value + "@centred");
    node.set_input(1, scale);
    node.set_output(0, made);
    node.set_name(made);
    nodes_.push_back(std::move(node));
  }
  centred_[value] = made;
  return made;
}

std::string ReferenceGraph::double_without_zero_point(const std::string& value) {
  const auto made = without_zero_point(value);
  return integers_.at(value).type == DataType::int32 ? made : dequantized(made);
}

std::string ReferenceGraph::scaled(const std::string& value, const std::vector<double>& scales, std::size_t axis,
                                   std::size_t rank, const std::string& wanted) {
  std::vector<std::int64_t> dims;
  if (scales.size() > 1) {
    dims.assign(rank - axis, 1);
    dims.front() = static_cast<std::int64_t>(scales.size());
  }
  return add("Mul", {value, constant_doubles(wanted + "@scale", std::move(dims), scales)}, wanted);
}

onnx::Model ReferenceGraph::finish() {
  for (const auto& output : model_.graph.outputs) need_float(output.name);
  model_.graph.nodes = std::move(nodes_);
  model_.graph.value_infos.clear();
  return std::move(model_);
}

}  // namespace detent::checking
