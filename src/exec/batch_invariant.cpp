#include "exec/batch_invariant.h"

#include <vector>

#include "graph/index.h"

namespace detent::exec {
namespace {

using onnx::Attribute;
using onnx::Node;

constexpr std::int64_t kOptionalBias = 11;  // opset from which Gemm's third input may be missing

bool is_float(const onnx::Model& model, const graph::ValueTypes& types, const std::string& value) {
  return graph::type_of(model, types, value) == onnx::DataType::float32;
}

bool may_have_one_row(const graph::ValueTypes& types, const std::string& value) {
  const auto found = types.find(value);
  return found != types.end() && found->second.shape && found->second.shape->at(0).value <= 1;
}

enum class Form { other, matrices, any_rank };

Form form_of(const onnx::Model& model, const graph::ValueTypes& types, const Node& node) {
  const bool product = node.is("MatMul") && model.opset() >= kOptionalBias;
  const bool gemm = node.is("Gemm") && node.int_or("transA", 0) == 0 && node.float_or("alpha", 1.0F) == 1.0F;
  if (!product && !gemm) return Form::other;
  const std::string& a = node.inputs()[0];
  const std::string& b = node.inputs()[1];
  if (!is_float(model, types, a) || !is_float(model, types, b) || graph::rank_of(types, b) != 2) return Form::other;
  // The runtime tells an unknown rank as 0, which a factor cannot have.
  const std::size_t rank = graph::rank_of(types, a).value_or(0);
  if (rank == 0 && product && types.at(b).shape->at(1).is_static()) return Form::any_rank;
  return rank == 2 && may_have_one_row(types, a) ? Form::matrices : Form::other;
}

class Rewriter {
 public:
  explicit Rewriter(onnx::Model& model, const graph::ValueTypes& types) : model_(model), types_(types), index_(model) {}

  void run() {
    std::vector<Node> nodes = std::move(model_.graph.nodes);
    for (auto& node : nodes) {
      switch (form_of(model_, types_, node)) {
        case Form::matrices: negate(node, node.inputs(), node.outputs().front()); break;
        case Form::any_rank: flatten(node); break;
        case Form::other: nodes_.push_back(std::move(node)); break;
      }
    }
    model_.graph.nodes = std::move(nodes_);
  }

 private:
  void negate(const Node& node, std::vector<std::string> inputs, const std::string& output) {
    const std::string negative = index_.fresh_name(output + "@negative");
    nodes_.push_back({"Gemm",
                      node.name(),
                      std::move(inputs),
                      {negative},
                      {Attribute::of_float("alpha", -1.0F), Attribute::of_float("beta", -node.float_or("beta", 1.0F)),
                       Attribute::of_int("transB", node.is("Gemm") ? node.int_or("transB", 0) : 0)}});
    nodes_.push_back({"Neg", index_.fresh_name(output + "@negate"), {negative}, {output}});
  }

  // A product with a first factor of unknown rank: all its rows as one matrix, and the result back in its shape.
  void flatten(const Node& node) {
    const std::string& a = node.inputs()[0];
    const std::string& y = node.outputs().front();
    const std::int64_t width = types_.at(node.inputs()[1]).shape->at(1).value;
    const std::string rows = add("Flatten", {a}, y + "@rows", {Attribute::of_int("axis", -1)});
    const std::string flat = index_.fresh_name(y + "@flat");
    negate(node, {rows, node.inputs()[1]}, flat);
    const std::string shape = add("Shape", {a}, y + "@shape");
    const std::string lead = add("Slice", {shape, constant(y + "@0", 0), constant(y + "@-1", -1)}, y + "@lead");
    const std::string full =
        add("Concat", {lead, constant(y + "@width", width)}, y + "@full", {Attribute::of_int("axis", 0)});
    nodes_.push_back({"Reshape", index_.fresh_name(y + "@reshape"), {flat, full}, {y}});
  }

  std::string add(const char* op_type, std::vector<std::string> inputs, const std::string& wanted,
                  std::vector<Attribute> attributes = {}) {
    std::string output = index_.fresh_name(wanted);
    nodes_.push_back({op_type, output, std::move(inputs), {output}, std::move(attributes)});
    return output;
  }

  std::string constant(const std::string& wanted, std::int64_t value) {
    std::string name = index_.fresh_name(wanted);
    const std::vector<std::int64_t> values{value};
    model_.graph.initializers.push_back(
        onnx::make_tensor<std::int64_t>(name, onnx::DataType::int64, {1}, std::span<const std::int64_t>(values)));
    return name;
  }

  onnx::Model& model_;
  const graph::ValueTypes& types_;
  graph::Index index_;
  std::vector<Node> nodes_;
};

}  // namespace

void make_batch_invariant(onnx::Model& model, const graph::ValueTypes& types) { Rewriter(model, types).run(); }

}  // namespace detent::exec
