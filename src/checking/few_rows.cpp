#include "checking/few_rows.h"

#include <algorithm>
#include <array>
#include <vector>

#include "checking/signature.h"
#include "graph/traits.h"

namespace detent::checking {
namespace {

using graph::kNone;

constexpr std::int64_t kFewRows = 8, kLongestSide = 256;  // of a weight

class Rows {
 public:
  Rows(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types)
      : model_(model), index_(index), types_(types) {}

  std::unordered_map<int, ChainOutcome> run() {
    for (int n = 0; n < static_cast<int>(model_.graph.nodes.size()); ++n) {
      if (!joined_.contains(n) && is_of_few_rows(at(n))) follow(n);
    }
    return std::move(joined_);
  }

 private:
  const onnx::Node& at(int n) const { return model_.graph.nodes[static_cast<std::size_t>(n)]; }

  const onnx::Tensor* constant(std::string value) const {
    if (const int maker = index_.producer(value); maker != kNone) {
      if (!graph::is_dequantize_linear(at(maker))) return nullptr;
      value = at(maker).inputs().front();
    }
    const int stored = index_.initializer(value);
    return stored == kNone ? nullptr : &model_.graph.initializers[static_cast<std::size_t>(stored)];
  }

  bool is_of_few_rows(const onnx::Node& node) const {
    if (!graph::is_matrix_product(node) || node.int_or("transA", 0) != 0) return false;
    const auto* weight = constant(node.inputs()[1]);
    if (weight == nullptr || weight->dims.size() != 2) return false;
    if (*std::max_element(weight->dims.begin(), weight->dims.end()) > kLongestSide) return false;
    const auto found = types_.find(node.outputs().front());
    if (found == types_.end() || !found->second.shape || found->second.shape->size() != 2) return false;
    return found->second.shape->front().value <= kFewRows;  // less than 0: as many as one likes
  }

  // The only reader of what a node makes.
  int reader_of(int n) const {
    const auto& value = at(n).outputs().front();
    const auto readers = index_.consumers(value);
    return readers.size() == 1 && !index_.is_output(value) ? readers.front() : kNone;
  }

  static bool vanishes(const onnx::Node& node) { return node.is("Relu") || node.is("Clip") || node.is("Identity"); }

  static bool stands_between(const onnx::Node& node) {
    constexpr std::array<std::string_view, 8> kAlone{"Celu", "HardSigmoid", "LeakyRelu", "Log",
                                                     "Selu", "Softplus",    "Swish",     "ThresholdedRelu"};
    if (graph::is_q_or_dq(node) || node.is("Identity")) return true;
    return graph::has_trait(node, graph::Trait::element_wise) &&
           std::find(kAlone.begin(), kAlone.end(), node.op_type()) == kAlone.end();
  }

  bool adds_a_bias(const onnx::Node& product) const {
    if (product.inputs().size() < 3 || product.inputs()[2].empty()) return false;
    const auto* bias = constant(product.inputs()[2]);
    if (bias == nullptr) return true;
    const auto is_set = [](auto v) { return v != 0; };
    if (bias->type == onnx::DataType::int32) {
      const auto values = onnx::to_int64s(*bias);
      return std::any_of(values.begin(), values.end(), is_set);
    }
    const auto values = onnx::to_doubles(*bias);
    return std::any_of(values.begin(), values.end(), is_set);
  }

  // Whether what follows takes the zero point of a product's input along.
  bool loses_zero_point(int product) const {
    if (form_of_input(model_, index_, at(product), 0).zero_point == 0 || adds_a_bias(at(product))) return false;
    int next = reader_of(product);
    while (next != kNone && vanishes(at(next))) next = reader_of(next);
    return next != kNone && graph::is_quantize_linear(at(next));
  }

  // Whether the kernel quantizes what its first product reads.
  bool quantizes(int product) const {
    const int pair = index_.producer(at(product).inputs().front());
    if (pair == kNone || !graph::is_dequantize_linear(at(pair)) || reader_of(pair) == kNone) return false;
    const int maker = index_.producer(at(pair).inputs().front());
    return maker != kNone && graph::is_quantize_linear(at(maker)) && reader_of(maker) != kNone;
  }

  void follow(int first) {
    std::vector<int> products{first};
    for (int next = reader_of(first); next != kNone; next = reader_of(next)) {
      if (is_of_few_rows(at(next))) {
        products.push_back(next);
      } else if (!stands_between(at(next))) {
        break;
      }
    }
    if (products.size() < 2) return;
    const bool wrong = std::any_of(products.begin(), products.end(), [&](int p) { return loses_zero_point(p); });
    const auto kind = wrong ? ChainOutcome::wrong : quantizes(first) ? ChainOutcome::floats : ChainOutcome::integers;
    for (const int product : products) joined_.emplace(product, kind);
  }

  const onnx::Model& model_;
  const graph::Index& index_;
  const graph::ValueTypes& types_;
  std::unordered_map<int, ChainOutcome> joined_;
};

}  // namespace

std::unordered_map<int, ChainOutcome> outcome_of_chained_products(const onnx::Model& model, const graph::Index& index,
                                                                  const graph::ValueTypes& types) {
  return Rows(model, index, types).run();
}

}  // namespace detent::checking
