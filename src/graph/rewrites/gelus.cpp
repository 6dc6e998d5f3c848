#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <optional>

#include "base/bytes.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

bool is_near(double number, double wanted) { return std::abs(number - wanted) < 1e-4 * wanted; }

// x * (1 + erf(x / sqrt(2))) / 2, whichever of the three is multiplied first.
class Composer {
 public:
  Composer(onnx::Model& model, const ValueTypes& types)
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
  const std::size_t found = Composer(model, types).run();
  if (found == 0) return {};
  if (model.opset("com.microsoft") == 0) model.set_opset("com.microsoft", 1);
  drop_unused_initializers(model);
  return {count_with_noun(found, "product") + " with Erf became Gelu"};
}

}  // namespace detent::graph
