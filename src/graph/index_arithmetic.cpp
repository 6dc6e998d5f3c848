#include "graph/index_arithmetic.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "graph/bodies.h"
#include "graph/decisions.h"
#include "graph/traits.h"
#include "onnx/bodies.h"

namespace detent::graph {
namespace {

using onnx::DataType;
using onnx::Node;

bool is_float(DataType type) {
  return type == DataType::float32 || type == DataType::float16 || type == DataType::bfloat16 ||
         type == DataType::float64;
}

bool may_be_index_arithmetic(const Node& node) {
  return !is_product(node) && !has_body(node) && node.bodies().empty() && node.op_type() != onnx::kBodyInputs;
}

std::vector<bool> from_shapes(const onnx::Model& model, const Index& index) {
  const auto depends = depends_on_input(model, index);
  std::unordered_set<std::string> varies;  // by what inputs hold
  for (const auto& input : model.graph.inputs) varies.insert(input.name);
  std::vector<bool> flags(model.graph.nodes.size());
  for (std::size_t n = 0; n < flags.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    const bool measures = node.is("Shape") || node.is("Size");
    const auto reads = [&](const auto& names) {
      return std::any_of(names.begin(), names.end(), [&](const auto& name) { return varies.contains(name); });
    };
    const bool any = !may_be_index_arithmetic(node) || draws_numbers(model, index, node) || node.body() != 0 ||
                     (!measures && reads(node.inputs()));
    if (any) varies.insert(node.outputs().begin(), node.outputs().end());
    flags[n] = !any && depends[n];
  }
  return flags;
}

class Ends {
 public:
  Ends(const onnx::Model& model, const Index& index, const ValueTypes& types)
      : model_(model), index_(index), types_(types), counts_(model.graph.nodes.size()) {}

  std::vector<bool> run() {
    for (std::size_t n = counts_.size(); n-- > 0;) counts_[n] = counts(model_.graph.nodes[n]);
    return std::move(counts_);
  }

 private:
  bool counts(const Node& node) const {
    if (!may_be_index_arithmetic(node)) return false;
    bool any = false;
    for (const auto& output : node.outputs()) {
      if (!is_float(type_of(model_, types_, output))) continue;
      if (index_.is_output(output) || index_.is_captured(output)) return false;
      for (const int reader : index_.consumers(output)) {
        any = true;
        if (!counts_[static_cast<std::size_t>(reader)] && !makes_an_index(output, reader)) return false;
      }
    }
    return any;
  }

  // Whether the node takes the value as a size, or makes integers of it.
  bool makes_an_index(const std::string& value, int reader) const {
    const auto& node = model_.graph.nodes[static_cast<std::size_t>(reader)];
    if (node.is("Cast")) {
      const auto to = type_of(model_, types_, node.outputs().at(0));
      return to != DataType::boolean && to != DataType::undefined && !is_float(to);
    }
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (node.inputs()[i] == value && !sets_output_size(node, i)) return false;
    }
    return true;
  }

  const onnx::Model& model_;
  const Index& index_;
  const ValueTypes& types_;
  std::vector<bool> counts_;
};

}  // namespace

IndexArithmetic index_arithmetic(const onnx::Model& model, const Index& index, const ValueTypes& types) {
  return {from_shapes(model, index), Ends(model, index, types).run()};
}

}  // namespace detent::graph
