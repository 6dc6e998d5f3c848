
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/product_forms.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

bool is_near(double number, double wanted) { return std::abs(number - wanted) < 1e-4 * wanted; }

// x * (1 + erf(x / sqrt(2))) / 2, whichever of the three is multiplied first.
class GeluComposer : Rewriter {
 public:
  using Rewriter::Rewriter;

  Notes run() {
    std::size_t found = 0;
    for (std::size_t n = 0; n < removed_.size(); ++n) found += compose(static_cast<int>(n)) ? 1U : 0U;
    if (found > 0 && model_.opset("com.microsoft") == 0) model_.set_opset("com.microsoft", 1);
    return finish(found, "GELU written with Erf became Gelu: " + count_with_noun(found, "node"));
  }

 private:
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
    const int sum = only_reader(erf);
    if (!x || only_reader(divided) != erf || !step(sum, false, 1.0)) return false;
    return end(*x, {division, erf, sum}, only_reader(sum));
  }

  // The two factors that are left, after the nodes that were found.
  bool end(const std::string& x, std::vector<int> nodes, int first) {
    const auto& sum = node_at(nodes.back()).outputs().front();
    if (step(first, true, 0.5)) {
      const int last = only_reader(first);
      const bool is_gelu = other_factor(last, node_at(first).outputs().front()) == x;
      if (is_gelu) nodes.push_back(first);
      return is_gelu && make(x, nodes, last);
    }
    const auto factor = other_factor(first, sum);
    if (!factor) return false;
    if (*factor == x) {
      const int last = only_reader(first);
      nodes.push_back(first);
      return step(last, true, 0.5) && make(x, nodes, last);
    }
    const int half = index_.producer(*factor);
    nodes.push_back(half);
    return step(half, true, 0.5) == x && only_reader(*factor) == first && make(x, nodes, first);
  }

  bool make(const std::string& x, const std::vector<int>& nodes, int last) {
    exchange(node_at(last), "Gelu", {x}, {}, "com.microsoft");
    for (const int n : nodes) remove(n);
    return true;
  }
};

// Clip(x + shift, 0, top) / top is HardSigmoid(x) with alpha = 1 / top and beta = shift / top.
struct Gate {
  std::string value;  // x
  int sum, clip;
  double shift, top;
};

class HardSigmoidComposer : Rewriter {
 public:
  HardSigmoidComposer(onnx::Model& model, ValueTypes& types) : Rewriter(model, types), made_types_(types) {}

  Notes run() {
    std::size_t found = 0;
    for (std::size_t n = 0; n < removed_.size(); ++n) {
      const auto gate = gate_of(static_cast<int>(n));
      if (gate && (is_divided_gate(*gate) || is_divided_product(*gate) || is_product_of_divided(*gate))) ++found;
    }
    return finish(found, count_with_noun(found, "sum") + ", clipped and divided, became HardSigmoid");
  }

 private:
  std::optional<double> number(const onnx::Node& node, std::size_t input) const {
    const auto* tensor = floats(node, input);
    if (tensor == nullptr || tensor->count() != 1) return std::nullopt;
    return floats_of(*tensor).front();
  }

  // Where the node multiplies by one number, or adds one.
  std::optional<ScalarStep> step_at(int node, bool multiplies) const {
    if (node == kNone) return std::nullopt;
    const auto step = scalar_step(model_, index_, types_, node_at(node));
    return step && step->multiplies == multiplies ? step : std::nullopt;
  }

  std::optional<Gate> gate_of(int n) {
    const auto& clip = node_at(n);
    if (!clip.is("Clip") || clip.inputs().size() < 3 || number(clip, 1) != 0.0) return std::nullopt;
    const auto top = number(clip, 2);
    const int sum = index_.producer(clip.inputs().front());
    const auto shift = step_at(sum, false);
    if (!top || !(*top > 0) || !std::isfinite(*top) || !shift || only_reader(clip.inputs().front()) != n)
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
    made_types_[output] = types_.at(gate.value);
    clip = onnx::Node("HardSigmoid", clip.name(), {gate.value}, {output}, {alpha, beta});
    remove(gate.sum);
  }

  // Clip(x + 3, 0, 6) / 6
  bool is_divided_gate(const Gate& gate) {
    const int next = only_reader(gate.clip);
    if (!divides(next, gate)) return false;
    make(gate, node_at(next).outputs().front());
    remove(next);
    return true;
  }

  // x * Clip(x + 3, 0, 6) / 6
  bool is_divided_product(const Gate& gate) {
    const int product = index_of_gated_product(gate, gate.value);
    if (product == kNone) return false;
    const int next = only_reader(product);
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
      if (product == kNone || only_reader(divided) != product) continue;
      multiply(gate, product, node_at(product).outputs().front());
      remove(reader);
      return true;
    }
    return false;
  }

  // The only reader of the clipped sum where it multiplies it with `other`.
  int index_of_gated_product(const Gate& gate, const std::string& other) {
    const int product = only_reader(gate.clip);
    if (product == kNone || !node_at(product).is("Mul")) return kNone;
    const auto& inputs = node_at(product).inputs();
    return inputs[0] == other || inputs[1] == other ? product : kNone;
  }

  void multiply(const Gate& gate, int product, const std::string& output) {
    const std::string gate_name = fresh(output + "_gate");
    make(gate, gate_name);
    auto& node = node_at(product);
    node.set_inputs({gate.value, gate_name});
    node.set_output(0, output);
  }

  ValueTypes& made_types_;
};

constexpr float kAlphaOfSwish = 1.0F / 6, kBetaOfSwish = 0.5F;
constexpr std::int64_t kOpsetOfHardSwish = 14;

bool is_gate_of_swish(const onnx::Node& node) {
  if (!node.is("HardSigmoid")) return false;
  const auto* alpha = node.attribute("alpha");
  const auto* beta = node.attribute("beta");
  return alpha != nullptr && is_near(alpha->as_float(), kAlphaOfSwish) &&
         (beta == nullptr || is_near(beta->as_float(), kBetaOfSwish));
}

class SwishRewriter : Rewriter {
 public:
  using Rewriter::Rewriter;

  Notes take_apart(ValueTypes& types) {
    std::size_t found = 0;
    rebuild([&](const onnx::Node& node) {
      if (!node.is("HardSwish") || !is_float32(node.inputs().front())) return false;
      const auto value = node.inputs().front();
      const auto gate = fresh(node.outputs().front() + "_gate");
      types[gate] = ValueType(types.at(value));
      add(node, "HardSigmoid", gate, {value}, gate,
          {onnx::Attribute::of_float("alpha", kAlphaOfSwish), onnx::Attribute::of_float("beta", kBetaOfSwish)});
      add(node, "Mul", node.name(), {value, gate}, node.outputs().front());
      ++found;
      return true;
    });
    return finish(found, count_with_noun(found, "HardSwish") + " became Mul and HardSigmoid");
  }

  void compose() {
    for (std::size_t n = 0; n < removed_.size(); ++n) {
      const auto& made = model_.graph.nodes[n];
      const int reader = is_gate_of_swish(made) ? only_reader(static_cast<int>(n)) : kNone;
      if (reader == kNone) continue;
      auto& product = node_at(reader);
      const auto value = made.inputs().front();
      const auto& read = product.inputs();
      if (!product.is("Mul") || product.body() != made.body() || (read[0] != value && read[1] != value)) continue;
      exchange(product, "HardSwish", {value});
      removed_[n] = true;
    }
    remove_nodes(model_, removed_);
  }
};

// PRelu, Mish, Elu, Selu and Celu of float32 in operators that ONNX Runtime's CPU has vectorized kernels for, which
// theirs are not.
class FastActivations : Rewriter {
 public:
  FastActivations(onnx::Model& model, ValueTypes& types) : Rewriter(model, types), made_types_(types) {}

  Notes run() {
    std::size_t found = 0;
    rebuild([&](const onnx::Node& node) {
      const bool is_float = !node.inputs().empty() && is_float32(node.inputs()[0]);
      const bool written = is_float && (prelu(node) || mish(node) || exponential(node));
      found += written ? 1U : 0U;
      return written;
    });
    return finish(found, count_with_noun(found, "activation") +
                             " (PRelu, Mish, Elu, Selu, Celu) became operators that the runtime computes faster");
  }

  // x * tanh(softplus(x)) is Mish.
  void compose_mishes() {
    for (std::size_t n = 0; n < removed_.size(); ++n) {
      const auto softplus = static_cast<int>(n);
      if (!node_at(softplus).is("Softplus")) continue;
      const int tanh = only_reader(softplus);
      const int product = tanh != kNone && node_at(tanh).is("Tanh") ? only_reader(tanh) : kNone;
      if (product == kNone || !node_at(product).is("Mul") || node_at(product).body() != node_at(softplus).body())
        continue;
      const std::string x = node_at(softplus).inputs().front();
      const auto& read = node_at(product).inputs();
      if (!is_float32(x) || (read[0] != x && read[1] != x)) continue;
      exchange(node_at(product), "Mish", {x});
      remove(softplus);
      remove(tanh);
    }
    remove_nodes(model_, removed_);
  }

 private:
  std::string step(const onnx::Node& node, const std::string& type, std::vector<std::string> inputs) {
    auto made = put(node, type, std::move(inputs));
    made_types_[made] = ValueType(types_.at(node.inputs()[0]));
    return made;
  }

  bool end(const onnx::Node& node, const std::string& type, std::vector<std::string> inputs) {
    add(node, type, node.name(), std::move(inputs), node.outputs()[0]);
    return true;
  }

  std::string number(float value) {
    auto& name = numbers_[value];
    if (name.empty()) name = add("number", {}, {value});
    return name;
  }

  // The larger of x and slope * x, where no slope is above 1.
  bool prelu(const onnx::Node& node) {
    const auto* slope = node.is("PRelu") ? floats(node, 1) : nullptr;
    if (slope == nullptr) return false;
    const auto& x = node.inputs()[0];
    const auto slopes = floats_of(*slope);
    // 0 times infinity is no number.
    if (std::all_of(slopes.begin(), slopes.end(), [](float v) { return v <= 1 && v != 0; }))
      return end(node, "Max", {x, step(node, "Mul", {x, slope->name})});
    const auto below = step(node, "Mul", {step(node, "Min", {x, number(0)}), slope->name});
    return end(node, "Add", {step(node, "Relu", {x}), below});
  }

  // tanh(log(1 + e^x)) = n / (n + 2), n = e^x (e^x + 2): for a float 1 from x = 20 on.
  bool mish(const onnx::Node& node) {
    if (!node.is("Mish")) return false;
    const auto& x = node.inputs()[0];
    const auto power = step(node, "Exp", {step(node, "Min", {x, number(20)})});
    const auto product = step(node, "Mul", {step(node, "Add", {power, number(2)}), power});
    const auto share = step(node, "Div", {product, step(node, "Add", {product, number(2)})});
    return end(node, "Mul", {x, share});
  }

  // Elu, Selu and Celu: gamma x above 0, below it gamma alpha (e^x - 1), of Celu alpha (e^(x / alpha) - 1).
  bool exponential(const onnx::Node& node) {
    const bool is_selu = node.is("Selu"), is_celu = node.is("Celu");
    if (!is_selu && !is_celu && !node.is("Elu")) return false;
    const auto given = [&](const char* name, float usual) {
      const auto* attribute = node.attribute(name);
      return attribute == nullptr ? usual : attribute->as_float();
    };
    const float alpha = given("alpha", is_selu ? 1.67326319217681884765625F : 1);
    const float gamma = is_selu ? given("gamma", 1.05070102214813232421875F) : 1;
    if (!(alpha > 0 && gamma > 0)) return false;
    const auto& x = node.inputs()[0];
    auto below = step(node, "Min", {x, number(0)});
    if (is_celu && alpha != 1) below = step(node, "Div", {below, number(alpha)});
    below = step(node, "Sub", {step(node, "Exp", {below}), number(1)});
    if (alpha * gamma != 1) below = step(node, "Mul", {below, number(alpha * gamma)});
    // Then no tangent at 0 is steeper than x, and the larger one is meant.
    if (gamma == 1 && (is_celu || alpha <= 1)) return end(node, "Max", {x, below});
    auto above = step(node, "Relu", {x});
    if (gamma != 1) above = step(node, "Mul", {above, number(gamma)});
    return end(node, "Add", {above, below});
  }

  ValueTypes& made_types_;
  std::map<float, std::string> numbers_;
};

using Dims = std::vector<std::int64_t>;
using Floats = std::vector<float>;

class HtpRewriter : Rewriter {
 public:
  using Rewriter::Rewriter;

  Notes run() {
    rebuild([&](onnx::Node& node) {
      if (normalizes_instances(node)) return true;
      if (!divides(node)) add_bias(node);
      return false;
    });
    move_constants_to_model();
    Notes notes;
    if (reciprocals_ > 0)
      notes.push_back(count_with_noun(reciprocals_, "Reciprocal") +
                      " became Div: the HTP's Reciprocal saturates below 0.5");
    for (auto& line :
         finish(instances_, count_with_noun(instances_, "InstanceNormalization") +
                                " became LayerNormalization: the HTP does not compile InstanceNormalization"))
      notes.push_back(std::move(line));
    return notes;
  }

 private:
  std::string shape(const Dims& dims) { return add_ints("shape_of_norm", dims); }

  // A node for `of`; its result.
  std::string step(const onnx::Node& of, const std::string& type, std::vector<std::string> inputs,
                   std::vector<onnx::Attribute> attributes = {}) {
    const auto output = fresh(of.id() + "_" + type);
    return add(of, type, output, std::move(inputs), output, std::move(attributes));
  }

  bool divides(onnx::Node& node) {
    if (!node.is("Reciprocal") || !is_float32(node.inputs()[0])) return false;
    if (one_.empty()) one_ = add("one", {}, {1});
    exchange(node, "Div", {one_, node.inputs()[0]});
    ++reciprocals_;
    return true;
  }

  bool normalizes_instances(const onnx::Node& node) {
    if (!node.is("InstanceNormalization") || node.body() != 0 || !is_float32(node.inputs()[0])) return false;
    const auto dims = static_shape(types_, node.inputs()[0]);
    const auto *scale = constant(node, 1), *bias = constant(node, 2);
    if (!dims || dims->size() < 3 || scale == nullptr || bias == nullptr) return false;
    const auto channels = (*dims)[1];
    const auto count = std::accumulate(dims->begin() + 2, dims->end(), std::int64_t{1}, std::multiplies<>());
    if (count < 1) return false;
    const auto* epsilon = node.attribute("epsilon");
    auto value = step(node, "Reshape", {node.inputs()[0], shape({(*dims)[0], channels, count})});
    const auto places = static_cast<std::size_t>(count);
    value = step(node, "LayerNormalization",
                 {value, add("ones", {count}, Floats(places, 1)), add("zeros", {count}, Floats(places, 0))},
                 {onnx::Attribute::of_int("axis", -1),
                  onnx::Attribute::of_float("epsilon", epsilon == nullptr ? 1e-5F : epsilon->as_float())});
    for (const auto& [type, tensor, neutral] : {std::tuple{"Mul", scale, 1.0F}, std::tuple{"Add", bias, 0.0F}}) {
      const auto numbers = floats_of(*tensor);
      if (std::all_of(numbers.begin(), numbers.end(), [n = neutral](float v) { return v == n; })) continue;
      value = step(node, type, {value, add(node.id() + "_channels", {channels, 1}, numbers)});
    }
    step(node, "Reshape", {value, shape(*dims)});
    nodes_.back().set_output(0, node.outputs()[0]);
    ++instances_;
    return true;
  }

  // Between 16 bits the HTP takes a LayerNormalization only with one.
  void add_bias(onnx::Node& node) {
    if (!node.is("LayerNormalization") || !is_float32(node.inputs()[0])) return;
    if (node.inputs().size() > 2 && !node.inputs()[2].empty()) return;
    const auto* scale = constant(node, 1);
    if (scale == nullptr) return;
    const auto count = static_cast<std::size_t>(scale->count());
    node.set_inputs({node.inputs()[0], node.inputs()[1], add("zeros", scale->dims, Floats(count, 0))});
  }

  std::string one_;
  std::size_t reciprocals_ = 0, instances_ = 0;
};

// Nodes of one type, each by another one.
class Exchanger : Rewriter {
 public:
  using Rewriter::Rewriter;

  Notes uniform_prelus() {
    std::size_t found = 0;
    for (auto& node : model_.graph.nodes) {
      const auto* slope = node.is("PRelu") ? floats(node, 1) : nullptr;
      if (slope == nullptr || slope->count() == 0) continue;
      const auto slopes = floats_of(*slope);
      if (std::any_of(slopes.begin(), slopes.end(), [&](float v) { return v != slopes.front(); })) continue;
      exchange(node, "LeakyRelu", {node.inputs().front()}, {onnx::Attribute::of_float("alpha", slopes.front())});
      ++found;
    }
    return finish(found, count_with_noun(found, "PRelu") + " with one slope for all channels became LeakyRelu");
  }

  // Between 16 bits the HTP leaves PRelu to the CPU.
  Notes part_prelus() {
    std::size_t found = 0;
    rebuild([&](const onnx::Node& node) {
      const auto& x = node.inputs().empty() ? std::string() : node.inputs()[0];
      if (!node.is("PRelu") || type_of(model_, types_, x) != onnx::DataType::float32) return false;
      const auto put = [&](const char* type, std::vector<std::string> inputs, const std::string& output) {
        return add(node, type, fresh(node.id() + "_" + type), std::move(inputs), output);
      };
      const auto positive = put("Relu", {x}, fresh(x + "_positive"));
      const auto negative = put("Sub", {x, positive}, fresh(x + "_negative"));
      const auto scaled = put("Mul", {negative, node.inputs()[1]}, fresh(x + "_scaled"));
      put("Add", {positive, scaled}, node.outputs()[0]);
      ++found;
      return true;
    });
    return finish(
        found, count_with_noun(found, "PRelu") + " became Relu, Sub, Mul and Add, which the HTP computes with 16 bits");
  }

  Notes squares() {
    std::size_t found = 0;
    for (auto& node : model_.graph.nodes) {
      if (!node.is("Pow") || constant(node, 0) != nullptr) continue;
      const auto* exponent = any_float_constant(model_, index_, node.inputs()[1]);
      if (exponent == nullptr || exponent->count() != 1 || !exponent->dims.empty()) continue;
      if (onnx::to_doubles(*exponent).front() != 2) continue;
      node.set_op_type("Mul");
      node.set_inputs({node.inputs()[0], node.inputs()[0]});
      ++found;
    }
    return finish(found, count_with_noun(found, "Pow") + " by 2 became Mul, which runs on integers");
  }
};

}  // namespace

Notes compose_gelus(onnx::Model& model, const ValueTypes& types) { return GeluComposer(model, types).run(); }

Notes compose_hard_sigmoids(onnx::Model& model, ValueTypes& types) { return HardSigmoidComposer(model, types).run(); }

Notes take_hard_swishes_apart(onnx::Model& model, ValueTypes& types) {
  return SwishRewriter(model, types).take_apart(types);
}

void compose_hard_swishes(onnx::Model& model) {
  if (model.opset() >= kOpsetOfHardSwish) SwishRewriter(model).compose();
}

Notes write_fast_activations(onnx::Model& model, ValueTypes& types) {
  FastActivations(model, types).compose_mishes();
  return FastActivations(model, types).run();
}

Notes uniform_prelus(onnx::Model& model) { return Exchanger(model).uniform_prelus(); }
Notes part_prelus(onnx::Model& model, const ValueTypes& types) { return Exchanger(model, types).part_prelus(); }
Notes squares_to_mul(onnx::Model& model) { return Exchanger(model).squares(); }

Notes rewrite_for_htp(onnx::Model& model, const ValueTypes& types, const Store& store) {
  return HtpRewriter(model, types, store).run();
}

bool has_instance_norm(const onnx::Model& model) {
  return std::any_of(model.graph.nodes.begin(), model.graph.nodes.end(),
                     [](const auto& node) { return node.is("InstanceNormalization"); });
}

}  // namespace detent::graph
