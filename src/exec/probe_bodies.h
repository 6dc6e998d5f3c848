// Bodies as models of their own, for what the runtime infers about the values in them.
#pragma once

#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/index.h"
#include "graph/values.h"
#include "onnx/model.h"

namespace detent::exec {

/// All of a model but its bodies and, of its graph, nodes, initializers, inputs, outputs and value_infos.
onnx::Model model_without_graph(const onnx::Model& model);

/// The bodies of a model, which must outlive the object. A part costs no more than the body has nodes.
class BodyParts {
 public:
  explicit BodyParts(const onnx::Model& model);

  /// The nodes of a body of the model, with bodies inside of it. What it reads from outside, and its own inputs, are
  /// inputs of the graph, with the types and shapes that `types` has of them. With `of_samples` the shapes are taken to
  /// be those of samples at hand, and what a Loop carries to keep its own. nullopt where the body has no nodes, or a
  /// value that it reads has a type that no input of a model can have.
  std::optional<onnx::Model> part(int body, const graph::ValueTypes& types, bool of_samples) const;

 private:
  struct Inside {
    std::vector<int> bodies;  // itself and those inside of it
    std::vector<std::size_t> nodes;
  };
  Inside inside(int body) const;
  void add_nodes(onnx::Model& part, int body, const graph::ValueTypes& types, bool of_samples) const;

  const onnx::Model& model_;
  graph::Index index_;
  std::vector<int> body_of_;
  onnx::Model rest_;
  // By body.
  std::vector<std::size_t> holders_;  // nodes
  std::vector<std::vector<std::size_t>> nodes_;
  std::vector<std::vector<int>> inner_;
  std::unordered_map<std::string_view, const onnx::ValueInfo*> stated_;
};

}  // namespace detent::exec
