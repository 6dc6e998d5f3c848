#include <algorithm>
#include <cmath>
#include <vector>

#include "base/bytes.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"

namespace detent::graph {
namespace {

class Plain {
 public:
  Plain(onnx::Model& model, const Store& store) : model_(model), store_(store), index_(model) {}

  std::size_t run() {
    std::size_t changed = 0;
    for (auto& node : model_.graph.nodes) {
      if (!node.is("Gemm")) continue;
      const bool weight = fold_alpha(node), bias = fold_beta(node);
      if (weight || bias) ++changed;
    }
    for (auto& tensor : made_) model_.graph.initializers.push_back(std::move(tensor));
    return changed;
  }

 private:
  bool fold_alpha(onnx::Node& node) {
    const float alpha = node.float_or("alpha", 1);
    const auto* weight = float32_constant(model_, index_, node, kWeightInput);
    if (alpha == 1 || weight == nullptr || only_reader(index_, weight->name) == kNone) return false;
    auto values = floats_of(*weight);
    for (float& value : values) value *= alpha;
    if (!all_finite(values)) return false;
    made_.push_back(stored_floats(index_.fresh_name(weight->name + "_scaled"), weight->dims, values, store_));
    node.set_input(kWeightInput, made_.back().name);
    node.remove_attribute("alpha");
    return true;
  }

  // The result has a row for each of the input, so that a constant of one row is added to each of them.
  bool fold_beta(onnx::Node& node) {
    const float beta = node.float_or("beta", 1);
    const auto* weight = float32_constant(model_, index_, node.inputs()[kWeightInput]);
    if (weight == nullptr && !made_.empty() && made_.back().name == node.inputs()[kWeightInput]) weight = &made_.back();
    const auto* bias = float32_constant(model_, index_, node, 2);
    if (weight == nullptr || weight->dims.size() != 2 || bias == nullptr) return false;
    const auto outputs = weight->dims[node.int_or("transB", 0) != 0 ? 0 : 1];
    const bool is_row = bias->count() == 1 || (bias->count() == outputs && bias->dims.back() == outputs);
    const bool is_vector = bias->dims.size() == 1 && bias->count() == outputs;
    if (!is_row || (is_vector && beta == 1)) return false;
    auto values = floats_of(*bias);
    values.resize(static_cast<std::size_t>(outputs), values.front());
    for (float& value : values) value = beta == 0 ? 0 : value * beta;
    if (!all_finite(values)) return false;
    made_.push_back(stored_floats(index_.fresh_name(bias->name + "_row"), {outputs}, values, store_));
    node.set_input(2, made_.back().name);
    node.remove_attribute("beta");
    return true;
  }

  static bool all_finite(const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  }

  onnx::Model& model_;
  const Store& store_;
  Index index_;
  std::vector<onnx::Tensor> made_;
};

}  // namespace

Notes plain_gemms(onnx::Model& model, const Store& store) {
  const std::size_t changed = Plain(model, store).run();
  if (changed == 0) return {};
  drop_unused_initializers(model);
  return {"computed into weights and biases: alpha, beta or one bias for all of " + count_with_noun(changed, "Gemm")};
}

}  // namespace detent::graph
