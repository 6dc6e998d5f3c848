#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/bytes.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

// Clip(x + shift, 0, top) / top is HardSigmoid(x) with alpha = 1 / top and beta = shift / top.
struct Gate {
  std::string value;  // x
  int sum, clip;
  double shift, top;
};

class Composer {
 public:
  Composer(onnx::Model& model, ValueTypes& types)
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
    const int product = gated(gate, gate.value);
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
      const int product = gated(gate, divided);
      if (product == kNone || only_reader(index_, divided) != product) continue;
      multiply(gate, product, node_at(product).outputs().front());
      remove(reader);
      return true;
    }
    return false;
  }

  // The only reader of the clipped sum where it multiplies it with `other`.
  int gated(const Gate& gate, const std::string& other) {
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
  const std::size_t found = Composer(model, types).run();
  if (found == 0) return {};
  drop_unused_initializers(model);
  return {count_with_noun(found, "sum") + ", clipped and divided, became HardSigmoid"};
}

}  // namespace detent::graph
