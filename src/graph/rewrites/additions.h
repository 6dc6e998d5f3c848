// What a rewrite adds beside the nodes that it changes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::graph {

/// Constants and nodes with names of their own. The model must outlive it; what it has at the beginning is what index()
/// knows.
class Additions {
 public:
  explicit Additions(const onnx::Model& model) : index_(model) {}

  Index& index() noexcept { return index_; }
  const Index& index() const noexcept { return index_; }

  /// A list of numbers, by its name.
  template <class T>
  std::string constant(const std::string& name, onnx::DataType type, const std::vector<T>& values) {
    constants_.push_back(
        onnx::make_tensor<T>(index_.fresh_name(name), type, {static_cast<std::int64_t>(values.size())}, values));
    return constants_.back().name;
  }

  /// A node of the same body as `beside`, at the end of `to`, by its result.
  std::string node(std::vector<onnx::Node>& to, const onnx::Node& beside, const std::string& type,
                   std::vector<std::string> inputs, std::vector<onnx::Attribute> attributes = {}) {
    const auto name = index_.fresh_name(beside.id() + "_" + type);
    to.emplace_back(type, name, std::move(inputs), std::vector{index_.fresh_name(name + "_result")},
                    std::move(attributes));
    to.back().set_body(beside.body());
    return to.back().outputs()[0];
  }

  void move_constants_to(onnx::Model& model) {
    for (auto& tensor : constants_) model.graph.initializers.push_back(std::move(tensor));
    constants_.clear();
  }

 private:
  Index index_;
  std::vector<onnx::Tensor> constants_;
};

}  // namespace detent::graph
