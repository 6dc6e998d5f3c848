// Small graphs through detent's own types.
#pragma once

#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/support.h"
#include "onnx/tensor.h"

namespace detent::graph::test {

using onnx::Attribute;
using onnx::DataType;
using onnx::Model;
using onnx::Node;
using onnx::test::expect_error;
using Names = std::vector<std::string>;
using Floats = std::vector<float>;

inline onnx::ValueInfo value(const std::string& name, const std::vector<std::int64_t>& dims = {2},
                             DataType type = DataType::float32) {
  std::vector<onnx::Dim> shape;
  for (const auto d : dims) shape.push_back({d, ""});
  return onnx::make_value_info(name, type, shape);
}

inline onnx::Tensor floats(const std::string& name, const std::vector<std::int64_t>& dims, const Floats& values) {
  return onnx::make_tensor<float>(name, DataType::float32, dims, values);
}
inline onnx::Tensor ints(const std::string& name, const std::vector<std::int64_t>& values) {
  return onnx::make_tensor<std::int64_t>(name, DataType::int64, {static_cast<std::int64_t>(values.size())}, values);
}

inline Model make_model(std::vector<Node> nodes, std::vector<onnx::Tensor> initializers = {}, std::int64_t opset = 17,
                        std::vector<onnx::ValueInfo> inputs = {value("x")},
                        std::vector<onnx::ValueInfo> outputs = {value("y")}) {
  Model model;
  model.path = "made.onnx";
  model.external = std::make_shared<onnx::ExternalFiles>(model.path);
  model.set_ir_version(8);
  model.set_opset("", opset);
  model.graph.other.push_back(onnx::string_field(2, "g"));
  model.graph.nodes = std::move(nodes);
  model.graph.initializers = std::move(initializers);
  model.graph.inputs = std::move(inputs);
  model.graph.outputs = std::move(outputs);
  return model;
}

/// A graph attribute: a body of the given nodes, with its own inputs, initializers and outputs.
inline Attribute body(const std::string& name, const std::vector<Node>& nodes,
                      const std::vector<onnx::ValueInfo>& outputs, const std::vector<onnx::ValueInfo>& inputs = {},
                      const std::vector<onnx::test::Msg>& initializers = {}) {
  onnx::test::Msg g;
  for (const auto& n : nodes) g.text(1, n.encode().view());
  g.text(2, name);
  for (const auto& t : initializers) g.sub(5, t);
  for (const auto& i : inputs) g.text(11, i.raw.view());
  for (const auto& o : outputs) g.text(12, o.raw.view());
  return Attribute(onnx::Wire::own(onnx::test::attribute_head(name).sub(6, g).varint(20, 5).bytes));
}

/// y = If(c) { then: Add(a, b) } { else: Identity(a) }, both reading from around.
inline Node if_node(const std::string& condition, const std::string& a, const std::string& b, const std::string& out) {
  return {"If",
          "choose",
          {condition},
          {out},
          {body("then_branch", {Node("Add", "", {a, b}, {"then_out"})}, {value("then_out")}),
           body("else_branch", {Node("Neg", "", {a}, {"else_out"})}, {value("else_out")})}};
}

inline Names op_types(const Model& model) {
  Names out;
  for (const auto& n : model.graph.nodes) out.push_back(n.op_type());
  return out;
}
inline Names initializer_names(const Model& model) {
  Names out;
  for (const auto& t : model.graph.initializers) out.push_back(t.name);
  return out;
}
inline const onnx::Tensor& initializer(const Model& model, const std::string& name) {
  for (const auto& t : model.graph.initializers) {
    if (t.name == name) return t;
  }
  throw std::runtime_error("no initializer " + name);
}
inline std::vector<int> list(std::span<const int> values) { return {values.begin(), values.end()}; }

using Shapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

/// Of float32 values.
inline ValueTypes types_of(const Shapes& shapes) {
  ValueTypes types;
  for (const auto& [name, dims] : shapes) {
    std::vector<onnx::Dim> shape;
    for (const auto d : dims) shape.push_back({d, ""});
    types[name] = {DataType::float32, shape};
  }
  return types;
}

}  // namespace detent::graph::test
