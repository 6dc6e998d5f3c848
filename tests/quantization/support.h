// Small graphs built by hand.
#pragma once

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "quantization/assignment.h"
#include "quantization/emit/emitters.h"
#include "quantization/placement/placement.h"

namespace detent::quantization::testing {

/// A model in the making; every value is float32 unless said otherwise.
struct Builder {
  onnx::Model model;
  graph::ValueTypes types;

  explicit Builder(std::int64_t opset = 17) {
    model.path = "test.onnx";
    model.set_opset("", opset);
  }
  Builder& input(const std::string& name) {
    model.graph.inputs.push_back({name, onnx::DataType::float32, {}, {}});
    types[name].type = onnx::DataType::float32;
    return *this;
  }
  Builder& output(const std::string& name) {
    model.graph.outputs.push_back({name, onnx::DataType::float32, {}, {}});
    return *this;
  }
  Builder& constant(const std::string& name, std::vector<std::int64_t> dims, const std::vector<float>& values) {
    const std::span<const float> span(values);
    model.graph.initializers.push_back(onnx::make_tensor(name, onnx::DataType::float32, std::move(dims), span));
    return *this;
  }
  /// Filled with 1, 2, 3, …
  Builder& constant(const std::string& name, const std::vector<std::int64_t>& dims) {
    std::size_t size = 1;
    for (const auto d : dims) size *= static_cast<std::size_t>(d);
    std::vector<float> values(size);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
    return constant(name, dims, values);
  }
  Builder& integers(const std::string& name, const std::vector<std::int64_t>& values) {
    const std::span<const std::int64_t> span(values);
    model.graph.initializers.push_back(
        onnx::make_tensor(name, onnx::DataType::int64, {static_cast<std::int64_t>(values.size())}, span));
    return *this;
  }
  /// The node is named "n_<first output>".
  Builder& node(const std::string& op, std::vector<std::string> in, std::vector<std::string> out,
                std::vector<onnx::Attribute> attributes = {}) {
    for (const auto& o : out) types.try_emplace(o, graph::ValueType{onnx::DataType::float32, {}});
    const std::string name = "n_" + out.front();
    model.graph.nodes.emplace_back(op, name, std::move(in), std::move(out), std::move(attributes));
    return *this;
  }
  Builder& type(const std::string& value, onnx::DataType data_type) {
    types[value].type = data_type;
    return *this;
  }
  Placement place(const QuantConfig& config = {}) const { return quantization::place(model, types, config); }
};

/// What calibration would propose that found these ranges.
inline Proposals proposals(const calibration::Ranges& ranges) {
  Proposals proposals;
  for (const auto& [value, range] : ranges) proposals.ranges[value] = {range, "minmax"};
  return proposals;
}

/// The default configuration with changes.
template <class Change>
QuantConfig config(Change change) {
  QuantConfig changed;
  change(changed);
  return changed;
}

inline const Mark* find(const Placement& placement, const std::string& value) {
  for (const auto& mark : placement.marks) {
    if (mark.value == value) return &mark;
  }
  return nullptr;
}

/// A mark in words: "activation", "weight", "weight@1", "constant", "shares x", or "" for no mark.
inline std::string kind(const Placement& placement, const std::string& value) {
  const Mark* mark = find(placement, value);
  if (mark == nullptr) return "";
  if (mark->shares) return "shares " + *mark->shares;
  if (!mark->is_constant) return "activation";
  std::string text = mark->is_weight ? "weight" : "constant";
  if (!mark->granularity.is_tensor()) text.append("@").append(std::to_string(mark->granularity.axis));
  return text;
}

/// The node that makes a value.
inline const onnx::Node& maker(const onnx::Model& model, const std::string& value) {
  for (const auto& node : model.graph.nodes) {
    if (std::find(node.outputs().begin(), node.outputs().end(), value) != node.outputs().end()) return node;
  }
  throw std::out_of_range("no node makes " + value);
}

inline const onnx::Tensor& tensor(const onnx::Model& model, const std::string& name) {
  for (const auto& t : model.graph.initializers) {
    if (t.name == name) return t;
  }
  throw std::out_of_range("no initializer " + name);
}

inline bool has_tensor(const onnx::Model& model, const std::string& name) {
  return std::any_of(model.graph.initializers.begin(), model.graph.initializers.end(),
                     [&](const auto& t) { return t.name == name; });
}

}  // namespace detent::quantization::testing
