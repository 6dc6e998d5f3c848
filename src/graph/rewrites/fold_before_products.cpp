#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/bytes.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"

namespace detent::graph {
namespace {

// Each takes away the steps next to a product: of (x + a) * b first the product with b, then the sum.
constexpr int kPasses = 3;

class Folding {
 public:
  Folding(onnx::Model& model, ValueTypes& types, const Store& store)
      : model_(model), types_(types), store_(store), index_(model), removed_(model.graph.nodes.size()) {}

  std::size_t run() {
    for (std::size_t n = 0; n < removed_.size(); ++n) {
      const auto step = step_at(static_cast<int>(n));
      if (step) step->multiplies ? fold_factor(n, *step) : fold_sum(n, *step);
    }
    remove_nodes(model_, removed_);
    return static_cast<std::size_t>(std::count(removed_.begin(), removed_.end(), true));
  }

 private:
  std::optional<ScalarStep> step_at(int node) const {
    if (node == kNone) return std::nullopt;
    const auto step = scalar_step(model_, index_, types_, node_at(node));
    if (!step || !std::isfinite(step->number) || (step->multiplies && step->number == 0)) return std::nullopt;
    return step;
  }

  const onnx::Node& node_at(int n) const { return model_.graph.nodes[static_cast<std::size_t>(n)]; }

  // Empty: not all readers of the value are products of it with constants that nobody else reads.
  std::vector<int> products_of(const std::string& value) const {
    const auto readers = index_.consumers(value);
    const auto is_layer = [&](int reader) {
      const auto& node = node_at(reader);
      if (!is_product(node) || node.inputs().front() != value) return false;
      const auto* weight = float32_constant(model_, index_, node, kWeightInput);
      return weight != nullptr && only_reader(index_, weight->name) != kNone;
    };
    if (index_.is_output(value) || index_.is_captured(value) || !std::all_of(readers.begin(), readers.end(), is_layer))
      return {};
    return {readers.begin(), readers.end()};
  }

  // A sum with a constant is a part of the bias where every output element sums over the whole weight. The mean that a
  // model takes from its input stays: without it, what is rounded of the weights would be multiplied by more.
  bool takes_sum(int product, const std::string& value) const {
    const auto& node = node_at(product);
    if (index_.is_input(value)) return false;
    const bool is_gemm = node.is("Gemm") && node.int_or("transA", 0) == 0 && node.float_or("alpha", 1) == 1 &&
                         node.float_or("beta", 1) == 1;
    if (!is_gemm && !(node.is("Conv") && is_unpadded(node))) return false;
    if (node.inputs().size() < 3 || node.inputs()[2].empty()) return true;
    const auto* bias = float32_constant(model_, index_, node, 2);
    return bias != nullptr && bias->dims == std::vector{channels_of(node)};
  }

  static bool is_unpadded(const onnx::Node& conv) {
    const auto* mode = conv.attribute("auto_pad");
    if (mode != nullptr && mode->as_string() != "NOTSET") return mode->as_string() == "VALID";
    const auto* pads = conv.attribute("pads");
    if (pads == nullptr) return true;
    const auto all = pads->as_ints();
    return std::all_of(all.begin(), all.end(), [](auto p) { return p == 0; });
  }

  std::int64_t channels_of(const onnx::Node& product) const {
    const auto& dims = float32_constant(model_, index_, product, kWeightInput)->dims;
    return dims[channel_axis(product, dims.size()).value()];
  }

  bool all_take_sum(const std::vector<int>& products, const std::string& value) const {
    return !products.empty() &&
           std::all_of(products.begin(), products.end(), [&](int p) { return takes_sum(p, value); });
  }

  void fold_sum(std::size_t n, const ScalarStep& sum) {
    const auto products = products_of(model_.graph.nodes[n].outputs().front());
    if (!all_take_sum(products, sum.value)) return;
    for (const int product : products) fold_into(product, sum.value, 1, sum.number);
    removed_[n] = true;
  }

  void fold_factor(std::size_t n, const ScalarStep& factor) {
    const std::string& scaled = model_.graph.nodes[n].outputs().front();
    const std::string& value = factor.value;
    const auto direct = products_of(scaled);
    for (const int product : direct) fold_into(product, value, factor.number, 0);
    removed_[n] = !direct.empty();
    if (!direct.empty()) return;

    const int next = only_reader(index_, scaled);
    const auto sum = step_at(next);
    if (!sum || sum->multiplies) return;
    const auto products = products_of(node_at(next).outputs().front());
    if (products.empty()) return;
    removed_[n] = true;
    if (all_take_sum(products, value)) {
      removed_[static_cast<std::size_t>(next)] = true;
      for (const int product : products) fold_into(product, value, factor.number, sum->number);
    } else {
      const auto name = unscaled_sum(next, value, sum->number / factor.number);
      for (const int product : products) fold_into(product, name, factor.number, 0);
    }
  }

  // value * factor + sum is (value + sum / factor) * factor.
  std::string unscaled_sum(int node, const std::string& value, double number) {
    auto& add = model_.graph.nodes[static_cast<std::size_t>(node)];
    const std::string before = add.outputs().front();
    const float summand[] = {static_cast<float>(number)};
    auto constant =
        onnx::make_tensor<float>(index_.fresh_name(before + "_summand"), onnx::DataType::float32, {}, summand);
    const std::string after = index_.fresh_name(before + "_unscaled");
    types_[after] = types_.at(before);
    add = onnx::Node("Add", add.name(), {value, constant.name}, {after});
    model_.graph.initializers.push_back(std::move(constant));
    return after;
  }

  // The product reads `value` instead of value * factor + sum.
  void fold_into(int product, const std::string& value, double factor, double sum) {
    auto& node = model_.graph.nodes[static_cast<std::size_t>(product)];
    const auto& weight = *float32_constant(model_, index_, node, kWeightInput);
    auto inputs = node.inputs();
    inputs[0] = value;
    std::vector<onnx::Tensor> made;
    if (sum != 0) {
      made.push_back(shifted_bias(node, weight, sum));
      inputs.resize(2);
      inputs.push_back(made.back().name);
    }
    if (factor != 1) {
      const std::vector<float> factors{static_cast<float>(factor)};
      made.push_back(stored_floats(index_.fresh_name(weight.name + "_scaled"), weight.dims,
                                   scaled_along(weight, 0, factors), store_));
      inputs[kWeightInput] = made.back().name;
    }
    node.set_inputs(std::move(inputs));
    for (auto& tensor : made) model_.graph.initializers.push_back(std::move(tensor));
  }

  onnx::Tensor shifted_bias(const onnx::Node& node, const onnx::Tensor& weight, double sum) {
    const auto axis = channel_axis(node, weight.dims.size()).value();
    const auto channels = static_cast<std::size_t>(weight.dims[axis]);
    const auto inner =
        static_cast<std::size_t>(std::accumulate(weight.dims.begin() + static_cast<std::ptrdiff_t>(axis) + 1,
                                                 weight.dims.end(), std::int64_t{1}, std::multiplies<>()));
    std::vector<double> sums(channels);
    const auto values = floats_of(weight);
    for (std::size_t i = 0; i < values.size(); ++i) sums[i / inner % channels] += static_cast<double>(values[i]);
    const auto* bias = float32_constant(model_, index_, node, 2);
    std::vector<float> result = bias != nullptr ? floats_of(*bias) : std::vector<float>(channels);
    for (std::size_t c = 0; c < channels; ++c)
      result[c] = static_cast<float>(static_cast<double>(result[c]) + sum * sums[c]);
    return stored_floats(index_.fresh_name((bias != nullptr ? bias : &weight)->name + "_bias"),
                         {static_cast<std::int64_t>(channels)}, result, store_);
  }

  onnx::Model& model_;
  ValueTypes& types_;
  const Store& store_;
  Index index_;
  std::vector<bool> removed_;
};

}  // namespace

Notes fold_before_products(onnx::Model& model, ValueTypes& types, const Store& store) {
  std::size_t folded = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const std::size_t more = Folding(model, types, store).run();
    folded += more;
    if (more == 0) break;
    drop_unused_initializers(model);
  }
  if (folded == 0) return {};
  return {"folded into the products behind them: " + count_with_noun(folded, "node") +
          " (multiplications and additions of constants)"};
}

}  // namespace detent::graph
