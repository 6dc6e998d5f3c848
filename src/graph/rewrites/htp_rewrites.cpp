#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

using Dims = std::vector<std::int64_t>;
using Floats = std::vector<float>;

class Rewriter {
 public:
  Rewriter(onnx::Model& model, const ValueTypes& types, const Store& store)
      : model_(model), types_(types), store_(store), index_(model) {}

  Notes run() {
    std::vector<onnx::Node> given = std::move(model_.graph.nodes);
    model_.graph.nodes.clear();
    for (auto& node : given) {
      if (divides(node) || normalizes_instances(node)) continue;
      add_bias(node);
      model_.graph.nodes.push_back(std::move(node));
    }
    for (auto& tensor : added_) model_.graph.initializers.push_back(std::move(tensor));
    Notes notes;
    if (reciprocals_ > 0)
      notes.push_back(count_with_noun(reciprocals_, "Reciprocal") +
                      " became Div: the HTP's saturates where it divides by "
                      "less than 0.5");
    if (instances_ == 0) return notes;
    drop_unused_initializers(model_);
    notes.push_back(count_with_noun(instances_, "InstanceNormalization") +
                    " became LayerNormalization, since the HTP does not "
                    "compile the other");
    return notes;
  }

 private:
  std::string constant(const std::string& name, Dims dims, const Floats& values) {
    auto fresh = index_.fresh_name(name);
    added_.push_back(stored_floats(fresh, std::move(dims), values, store_));
    return fresh;
  }

  std::string shape(const Dims& dims) {
    auto fresh = index_.fresh_name("shape_of_norm");
    added_.push_back(onnx::make_tensor<std::int64_t>(
        fresh, onnx::DataType::int64, {static_cast<std::int64_t>(dims.size())}, std::span<const std::int64_t>(dims)));
    return fresh;
  }

  bool is_float(const std::string& value) const {
    const auto found = types_.find(value);
    return found != types_.end() && found->second.type == onnx::DataType::float32;
  }

  // A node for `of`; its result.
  std::string add(const onnx::Node& of, const std::string& type, std::vector<std::string> inputs,
                  std::vector<onnx::Attribute> attributes = {}) {
    auto output = index_.fresh_name(of.id() + "_" + type);
    onnx::Node made(type, output, std::move(inputs), {output}, std::move(attributes));
    made.set_body(of.body());
    model_.graph.nodes.push_back(std::move(made));
    return output;
  }

  bool divides(const onnx::Node& node) {
    if (!node.is("Reciprocal") || !is_float(node.inputs()[0])) return false;
    if (one_.empty()) one_ = constant("one", {}, {1});
    onnx::Node division("Div", node.name(), {one_, node.inputs()[0]}, {node.outputs()[0]});
    division.set_body(node.body());
    model_.graph.nodes.push_back(std::move(division));
    ++reciprocals_;
    return true;
  }

  bool normalizes_instances(const onnx::Node& node) {
    if (!node.is("InstanceNormalization") || node.body() != 0 || !is_float(node.inputs()[0])) return false;
    const auto dims = static_shape(types_, node.inputs()[0]);
    const int scale = index_.initializer(node.inputs()[1]), bias = index_.initializer(node.inputs()[2]);
    if (!dims || dims->size() < 3 || scale == kNone || bias == kNone) return false;
    const auto channels = (*dims)[1];
    const auto count = std::accumulate(dims->begin() + 2, dims->end(), std::int64_t{1}, std::multiplies<>());
    if (count < 1) return false;
    const auto* epsilon = node.attribute("epsilon");
    auto value = add(node, "Reshape", {node.inputs()[0], shape({(*dims)[0], channels, count})});
    const auto places = static_cast<std::size_t>(count);
    value = add(node, "LayerNormalization",
                {value, constant("ones", {count}, Floats(places, 1)), constant("zeros", {count}, Floats(places, 0))},
                {onnx::Attribute::of_int("axis", -1),
                 onnx::Attribute::of_float("epsilon", epsilon == nullptr ? 1e-5F : epsilon->as_float())});
    for (const auto& [type, tensor, neutral] : {std::tuple{"Mul", scale, 1.0F}, std::tuple{"Add", bias, 0.0F}}) {
      const auto numbers = floats_of(model_.graph.initializers[static_cast<std::size_t>(tensor)]);
      if (std::all_of(numbers.begin(), numbers.end(), [n = neutral](float v) { return v == n; })) continue;
      value = add(node, type, {value, constant(node.id() + "_channels", {channels, 1}, numbers)});
    }
    add(node, "Reshape", {value, shape(*dims)});
    model_.graph.nodes.back().set_output(0, node.outputs()[0]);
    ++instances_;
    return true;
  }

  // Between 16 bits the HTP takes a LayerNormalization only with one.
  void add_bias(onnx::Node& node) {
    if (!node.is("LayerNormalization") || !is_float(node.inputs()[0])) return;
    if (node.inputs().size() > 2 && !node.inputs()[2].empty()) return;
    const int scale = index_.initializer(node.inputs()[1]);
    if (scale == kNone) return;
    const auto& dims = model_.graph.initializers[static_cast<std::size_t>(scale)].dims;
    const auto count = std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
    node.set_inputs(
        {node.inputs()[0], node.inputs()[1], constant("zeros", dims, Floats(static_cast<std::size_t>(count), 0))});
  }

  onnx::Model& model_;
  const ValueTypes& types_;
  const Store& store_;
  Index index_;
  std::vector<onnx::Tensor> added_;
  std::string one_;
  std::size_t reciprocals_ = 0, instances_ = 0;
};

}  // namespace

Notes rewrite_for_htp(onnx::Model& model, const ValueTypes& types, const Store& store) {
  return Rewriter(model, types, store).run();
}

Notes squares_to_mul(onnx::Model& model) {
  const Index index(model);
  std::size_t squares = 0;
  for (auto& node : model.graph.nodes) {
    if (!node.is("Pow") || index.initializer(node.inputs()[0]) != kNone) continue;
    const auto* exponent = any_float_constant(model, index, node.inputs()[1]);
    if (exponent == nullptr || exponent->count() != 1 || !exponent->dims.empty()) continue;
    if (onnx::to_doubles(*exponent).front() != 2) continue;
    node.set_op_type("Mul");
    node.set_inputs({node.inputs()[0], node.inputs()[0]});
    ++squares;
  }
  if (squares == 0) return {};
  drop_unused_initializers(model);
  return {count_with_noun(squares, "Pow") + " by 2 became Mul, which runs on integers"};
}

bool has_instance_norm(const onnx::Model& model) {
  return std::any_of(model.graph.nodes.begin(), model.graph.nodes.end(),
                     [](const auto& node) { return node.is("InstanceNormalization"); });
}

}  // namespace detent::graph
