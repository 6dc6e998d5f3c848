#include "graph/front_end.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/constants.h"
#include "graph/traits.h"

namespace detent::graph {
namespace {

bool is_one_of(const onnx::Node& node, const auto& types) {
  return node.domain().empty() && std::find(types.begin(), types.end(), node.op_type()) != types.end();
}

constexpr std::array<std::string_view, 20> kSums{
    "Abs",  "Add",   "Cast",     "CumSum",   "DFT",       "Div",        "Mul",       "Neg",
    "Pow",  "Range", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceSum", "ReduceSumSquare",
    "STFT", "Size",  "Sub",      "Sum"};
constexpr std::array<std::string_view, 4> kBounds{"Clip", "Max", "Min", "Relu"};
constexpr std::array<std::string_view, 2> kLogarithms{"Log", "ReduceLogSum"};
constexpr std::array<std::string_view, 6> kDividing{"GroupNormalization",        "InstanceNormalization",
                                                    "LayerNormalization",        "LpNormalization",
                                                    "MeanVarianceNormalization", "Reciprocal"};

class FrontEnd {
 public:
  FrontEnd(const onnx::Model& model, const Index& index, FrontEnds which)
      : model_(model), index_(index), which_(which), varies_(depends_on_input(model, index)) {
    for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) visit(n);
  }

  std::set<std::size_t> take() { return std::move(nodes_); }

 private:
  struct Value {
    bool has_product = false;  // made by way of one
    bool is_bounded = false;   // and cut off at a bound behind it
  };

  void visit(std::size_t n) {
    const auto& node = model_.graph.nodes[n];
    if (!varies_[n]) return;
    Value value;
    for (const auto& input : node.inputs()) {
      if (input.empty() || index_.is_input(input) || is_constant(input)) continue;
      const auto found = values_.find(input);
      if (found == values_.end()) return;
      value.has_product |= found->second.has_product;
      value.is_bounded |= found->second.is_bounded;
    }
    const bool ends = value.has_product && compresses(node);
    if (ends) collect(n);
    if (is_product(node)) {
      if (value.is_bounded) return;
      value.has_product = true;
    } else if (is_one_of(node, kBounds)) {
      value.is_bounded |= value.has_product;
    } else if (!node.is("Sqrt") && (ends || !sums_or_moves(node))) {
      return;
    }
    for (const auto& output : node.outputs()) values_[output] = value;
  }

  bool is_constant(const std::string& value) const {
    const int producer = index_.producer(value);
    return index_.initializer(value) != kNone || (producer != kNone && !varies_[static_cast<std::size_t>(producer)]);
  }

  static bool sums_or_moves(const onnx::Node& node) {
    const auto& traits = traits_of(node);
    return is_one_of(node, kSums) || traits.counting == Counting::moves || traits.counting == Counting::free ||
           traits.is(Trait::rearranges);
  }

  // A square root does not end one: a speech detector keeps its decisions with what leads to it in integers.
  bool compresses(const onnx::Node& node) const {
    const bool all = which_ == FrontEnds::all;
    if (is_one_of(node, kLogarithms) || (all && is_one_of(node, kDividing))) return true;
    if (node.is("Div")) return all && !is_constant(node.inputs()[1]);
    if (!node.is("Pow")) return false;
    if (!is_constant(node.inputs()[1])) return all;
    const auto* exponents = any_float_constant(model_, index_, node.inputs()[1]);
    if (exponents == nullptr) return false;  // whole numbers, or made by nodes
    const auto values = floats_of(*exponents);
    return std::any_of(values.begin(), values.end(),
                       [](float exponent) { return exponent < 1 && std::abs(exponent) != 0.5F; });
  }

  void collect(std::size_t end) {
    std::vector<std::size_t> pending{end};
    while (!pending.empty()) {
      const std::size_t n = pending.back();
      pending.pop_back();
      if (!nodes_.insert(n).second) continue;
      for (const auto& input : model_.graph.nodes[n].inputs()) {
        if (values_.contains(input)) pending.push_back(static_cast<std::size_t>(index_.producer(input)));
      }
    }
  }

  const onnx::Model& model_;
  const Index& index_;
  FrontEnds which_;
  std::vector<bool> varies_;
  std::unordered_map<std::string, Value> values_;  // that belong to a front end
  std::set<std::size_t> nodes_;
};

}  // namespace

std::set<std::size_t> front_end(const onnx::Model& model, const Index& index, FrontEnds which) {
  return FrontEnd(model, index, which).take();
}

}  // namespace detent::graph
