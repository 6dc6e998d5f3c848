#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

bool is_near(double number, double wanted) { return std::abs(number - wanted) < 1e-4 * wanted; }

// x * (1 + erf(x / sqrt(2))) / 2, whichever of the three is multiplied first.
class GeluComposer {
 public:
  GeluComposer(onnx::Model& model, const ValueTypes& types)
      : model_(model), types_(types), index_(model), removed_(model.graph.nodes.size()) {}

  std::size_t run() {
    std::size_t found = 0;
    for (std::size_t n = 0; n < removed_.size(); ++n) found += compose(static_cast<int>(n)) ? 1U : 0U;
    if (found > 0) remove_nodes(model_, removed_);
    return found;
  }

 private:
  onnx::Node& node_at(int n) { return model_.graph.nodes[static_cast<std::size_t>(n)]; }
  int next_of(int n) { return only_reader(index_, node_at(n).outputs().front()); }

  // What the node multiplies by this number, or adds it to.
  std::optional<std::string> step(int n, bool multiplies, double number) {
    if (n == kNone) return std::nullopt;
    const auto found = scalar_step(model_, index_, types_, node_at(n));
    if (!found || found->multiplies != multiplies || !is_near(found->number, number)) return std::nullopt;
    return found->value;
  }

  // The other factor of a product of two values.
  std::optional<std::string> other_factor(int n, const std::string& value) {
    if (n == kNone || !node_at(n).is("Mul")) return std::nullopt;
    const auto& inputs = node_at(n).inputs();
    if (inputs[0] == value) return inputs[1];
    return inputs[1] == value ? std::optional(inputs[0]) : std::nullopt;
  }

  bool compose(int erf) {
    if (!node_at(erf).is("Erf")) return false;
    const auto& divided = node_at(erf).inputs().front();
    const int division = index_.producer(divided);
    const auto x = step(division, true, 1 / std::numbers::sqrt2);
    const int sum = next_of(erf);
    if (!x || only_reader(index_, divided) != erf || !step(sum, false, 1.0)) return false;
    return end(*x, {division, erf, sum}, next_of(sum));
  }

  // The two factors that are left, after the nodes that were found.
  bool end(const std::string& x, std::vector<int> nodes, int first) {
    const auto& sum = node_at(nodes.back()).outputs().front();
    if (step(first, true, 0.5)) {
      const int last = next_of(first);
      const bool is_gelu = other_factor(last, node_at(first).outputs().front()) == x;
      if (is_gelu) nodes.push_back(first);
      return is_gelu && make(x, nodes, last);
    }
    const auto factor = other_factor(first, sum);
    if (!factor) return false;
    if (*factor == x) {
      const int last = next_of(first);
      nodes.push_back(first);
      return step(last, true, 0.5) && make(x, nodes, last);
    }
    const int half = index_.producer(*factor);
    nodes.push_back(half);
    return step(half, true, 0.5) == x && only_reader(index_, *factor) == first && make(x, nodes, first);
  }

  bool make(const std::string& x, const std::vector<int>& nodes, int last) {
    auto& node = node_at(last);
    const int body = node.body();
    node = onnx::Node("Gelu", node.name(), {x}, {node.outputs().front()}, {}, "com.microsoft");
    node.set_body(body);
    for (const int n : nodes) removed_[static_cast<std::size_t>(n)] = true;
    return true;
  }

  onnx::Model& model_;
  const ValueTypes& types_;
  Index index_;
  std::vector<bool> removed_;
};

}  // namespace

Notes compose_gelus(onnx::Model& model, const ValueTypes& types) {
  const std::size_t found = GeluComposer(model, types).run();
  if (found == 0) return {};
  if (model.opset("com.microsoft") == 0) model.set_opset("com.microsoft", 1);
  drop_unused_initializers(model);
  return {count_with_noun(found, "product") + " with Erf became Gelu"};
}

namespace {

// Clip(x + shift, 0, top) / top is HardSigmoid(x) with alpha = 1 / top and beta = shift / top.
struct Gate {
  std::string value;  // x
  int sum, clip;
  double shift, top;
};

class HardSigmoidComposer {
 public:
  HardSigmoidComposer(onnx::Model& model, ValueTypes& types)
      : model_(model), types_(types), index_(model), removed_(model.graph.nodes.size()) {}

  std::size_t run() {
    std::size_t found = 0;
    for (std::size_t n = 0; n < removed_.size(); ++n) {
      const auto gate = gate_of(static_cast<int>(n));
      if (gate && (is_divided_gate(*gate) || is_divided_product(*gate) || is_product_of_divided(*gate))) ++found;
    }
    if (found > 0) remove_nodes(model_, removed_);
    return found;
  }

 private:
  onnx::Node& node_at(int n) { return model_.graph.nodes[static_cast<std::size_t>(n)]; }
  void remove(int n) { removed_[static_cast<std::size_t>(n)] = true; }

  std::optional<double> number(const onnx::Node& node, std::size_t input) const {
    const auto* tensor = float32_constant(model_, index_, node, input);
    if (tensor == nullptr || tensor->count() != 1) return std::nullopt;
    return floats_of(*tensor).front();
  }

  // Where the node multiplies by one number, or adds one.
  std::optional<ScalarStep> step_at(int node, bool multiplies) const {
    if (node == kNone) return std::nullopt;
    const auto step = scalar_step(model_, index_, types_, model_.graph.nodes[static_cast<std::size_t>(node)]);
    return step && step->multiplies == multiplies ? step : std::nullopt;
  }

  std::optional<Gate> gate_of(int n) {
    const auto& clip = node_at(n);
    if (!clip.is("Clip") || clip.inputs().size() < 3 || number(clip, 1) != 0.0) return std::nullopt;
    const auto top = number(clip, 2);
    const int sum = index_.producer(clip.inputs().front());
    const auto shift = step_at(sum, false);
    if (!top || !(*top > 0) || !std::isfinite(*top) || !shift || only_reader(index_, clip.inputs().front()) != n)
      return std::nullopt;
    return Gate{shift->value, sum, n, shift->number, *top};
  }

  // Whether the node divides what it reads by the gate's top.
  bool divides(int node, const Gate& gate) const {
    const auto factor = step_at(node, true);
    return factor && std::abs(factor->number * gate.top - 1) < 1e-6;
  }

  // In the place of the clipping, which comes before all that reads it.
  void make(const Gate& gate, const std::string& output) {
    const auto alpha = onnx::Attribute::of_float("alpha", static_cast<float>(1 / gate.top));
    const auto beta = onnx::Attribute::of_float("beta", static_cast<float>(gate.shift / gate.top));
    auto& clip = node_at(gate.clip);
    types_[output] = types_.at(gate.value);
    clip = onnx::Node("HardSigmoid", clip.name(), {gate.value}, {output}, {alpha, beta});
    remove(gate.sum);
  }

  // Clip(x + 3, 0, 6) / 6
  bool is_divided_gate(const Gate& gate) {
    const int next = only_reader(index_, node_at(gate.clip).outputs().front());
    if (!divides(next, gate)) return false;
    make(gate, node_at(next).outputs().front());
    remove(next);
    return true;
  }

  // x * Clip(x + 3, 0, 6) / 6
  bool is_divided_product(const Gate& gate) {
    const int product = index_of_gated_product(gate, gate.value);
    if (product == kNone) return false;
    const int next = only_reader(index_, node_at(product).outputs().front());
    if (!divides(next, gate)) return false;
    multiply(gate, product, node_at(next).outputs().front());
    remove(next);
    return true;
  }

  // x / 6 * Clip(x + 3, 0, 6)
  bool is_product_of_divided(const Gate& gate) {
    for (const int reader : index_.consumers(gate.value)) {
      if (!divides(reader, gate)) continue;
      const std::string divided = node_at(reader).outputs().front();
      const int product = index_of_gated_product(gate, divided);
      if (product == kNone || only_reader(index_, divided) != product) continue;
      multiply(gate, product, node_at(product).outputs().front());
      remove(reader);
      return true;
    }
    return false;
  }

  // The only reader of the clipped sum where it multiplies it with `other`.
  int index_of_gated_product(const Gate& gate, const std::string& other) {
    const int product = only_reader(index_, node_at(gate.clip).outputs().front());
    if (product == kNone || !node_at(product).is("Mul")) return kNone;
    const auto& inputs = node_at(product).inputs();
    return inputs[0] == other || inputs[1] == other ? product : kNone;
  }

  void multiply(const Gate& gate, int product, const std::string& output) {
    const std::string gate_name = index_.fresh_name(output + "_gate");
    make(gate, gate_name);
    auto& node = node_at(product);
    node.set_inputs({gate.value, gate_name});
    node.set_output(0, output);
  }

  onnx::Model& model_;
  ValueTypes& types_;
  Index index_;
  std::vector<bool> removed_;
};

}  // namespace

Notes compose_hard_sigmoids(onnx::Model& model, ValueTypes& types) {
  const std::size_t found = HardSigmoidComposer(model, types).run();
  if (found == 0) return {};
  drop_unused_initializers(model);
  return {count_with_noun(found, "sum") + ", clipped and divided, became HardSigmoid"};
}

namespace {

constexpr float kAlphaOfSwish = 1.0F / 6, kBetaOfSwish = 0.5F;
constexpr std::int64_t kOpsetOfHardSwish = 14;

bool is_gate_of_swish(const onnx::Node& node) {
  if (!node.is("HardSigmoid")) return false;
  const auto* alpha = node.attribute("alpha");
  const auto* beta = node.attribute("beta");
  return alpha != nullptr && is_near(alpha->as_float(), kAlphaOfSwish) &&
         (beta == nullptr || is_near(beta->as_float(), kBetaOfSwish));
}

}  // namespace

Notes take_hard_swishes_apart(onnx::Model& model, ValueTypes& types) {
  Index index(model);
  std::vector<onnx::Node> nodes;
  std::size_t found = 0;
  for (auto& node : model.graph.nodes) {
    const auto type = node.is("HardSwish") ? types.find(node.inputs().front()) : types.end();
    if (type == types.end() || type->second.type != onnx::DataType::float32) {
      nodes.push_back(std::move(node));
      continue;
    }
    const auto value = node.inputs().front(), output = node.outputs().front();
    const auto gate = index.fresh_name(output + "_gate");
    types[gate] = type->second;
    const auto body = node.body();
    for (auto& made : {onnx::Node("HardSigmoid", gate, {value}, {gate},
                                  {onnx::Attribute::of_float("alpha", kAlphaOfSwish),
                                   onnx::Attribute::of_float("beta", kBetaOfSwish)}),
                       onnx::Node("Mul", node.name(), {value, gate}, {output})}) {
      nodes.push_back(made);
      nodes.back().set_body(body);
    }
    ++found;
  }
  model.graph.nodes = std::move(nodes);
  if (found == 0) return {};
  return {count_with_noun(found, "HardSwish") + " became a product with HardSigmoid"};
}

void compose_hard_swishes(onnx::Model& model) {
  if (model.opset() < kOpsetOfHardSwish) return;
  const Index index(model);
  auto& nodes = model.graph.nodes;
  std::vector<bool> removed(nodes.size());
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (!is_gate_of_swish(nodes[n])) continue;
    const auto value = nodes[n].inputs().front(), gate = nodes[n].outputs().front();
    const int reader = only_reader(index, gate);
    if (reader == kNone) continue;
    auto& product = nodes[static_cast<std::size_t>(reader)];
    const auto& read = product.inputs();
    if (!product.is("Mul") || product.body() != nodes[n].body() || (read[0] != value && read[1] != value)) continue;
    onnx::Node swish("HardSwish", product.name(), {value}, {product.outputs().front()});
    swish.set_body(product.body());
    product = std::move(swish);
    removed[n] = true;
  }
  remove_nodes(model, removed);
}

Notes uniform_prelus(onnx::Model& model) {
  const Index index(model);
  std::size_t found = 0;
  for (auto& node : model.graph.nodes) {
    const auto* slope = node.is("PRelu") ? float32_constant(model, index, node, 1) : nullptr;
    if (slope == nullptr || slope->count() == 0) continue;
    const auto slopes = floats_of(*slope);
    if (std::any_of(slopes.begin(), slopes.end(), [&](float v) { return v != slopes.front(); })) continue;
    onnx::Node leaky("LeakyRelu", node.name(), {node.inputs().front()}, {node.outputs().front()},
                     {onnx::Attribute::of_float("alpha", slopes.front())});
    leaky.set_body(node.body());
    node = std::move(leaky);
    ++found;
  }
  if (found == 0) return {};
  drop_unused_initializers(model);
  return {count_with_noun(found, "PRelu") + " with one slope for all channels became LeakyRelu"};
}

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
