// A quantized model in groups, each of which a runtime may run as one kernel: what lies between values in quantized
// form.
#pragma once

#include <string>
#include <vector>

#include "graph/index.h"
#include "graph/values.h"
#include "onnx/model.h"

namespace detent::checking {

/// Nodes all of whose results but the last one's are read within the group alone. A QuantizeLinear ends its group. A
/// DequantizeLinear and nodes that compute from constants belong to each group that reads them.
struct Group {
  std::vector<int> nodes;            // in the model's order
  std::vector<std::string> inputs;   // inputs of the graph, and values that earlier groups make
  std::vector<std::string> outputs;  // that later groups read, and outputs of the graph; of the last node
  int last = graph::kNone;
};

/// In an order in which each group reads what earlier ones make. Nodes must be in topological order.
std::vector<Group> groups_of(const onnx::Model& model, const graph::Index& index);

/// Makes a model of a group. Shares tensor data with the model, which must outlive it.
class GroupModels {
 public:
  GroupModels(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types);
  onnx::Model model(const Group& group) const;

 private:
  onnx::ValueInfo info_of(const std::string& name) const;

  const onnx::Model& model_;
  const graph::Index& index_;
  const graph::ValueTypes& types_;
  onnx::Model frame_;  // all but graphs
};

}  // namespace detent::checking
