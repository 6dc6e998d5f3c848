#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"

namespace detent::graph {
namespace {

constexpr std::int64_t kFewRows = 8;

// What a product multiplies its first input by, and what it adds.
struct Matrix {
  const onnx::Tensor* weight = nullptr;
  bool is_turned = false;
  float factor = 1;
  std::string bias;
};

bool hands_on(const onnx::Node& node) {
  return has_trait(node, Trait::element_wise) || has_trait(node, Trait::renames) || node.is("Softmax");
}

class Rewriter {
 public:
  Rewriter(onnx::Model& model, const ValueTypes& types, const Store& store)
      : model_(model), types_(types), store_(store), index_(model) {}

  Notes run() {
    const auto chosen = followers();
    if (chosen.empty()) return {};
    std::vector<onnx::Node> nodes;
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      auto& node = model_.graph.nodes[n];
      if (const auto found = chosen.find(n); found != chosen.end()) {
        rewrite(node, found->second, nodes);
      } else {
        nodes.push_back(std::move(node));
      }
    }
    model_.graph.nodes = std::move(nodes);
    for (auto& tensor : added_) model_.graph.initializers.push_back(std::move(tensor));
    drop_unused_initializers(model_);
    const bool one = chosen.size() == 1;
    return {
        fmt::format("{} of few rows behind {} get{} a third axis: OpenVINO joins those of two, and computes them "
                    "wrongly where they add no bias",
                    count_with_noun(chosen.size(), "product"), one ? "another" : "others", one ? "s" : "")};
  }

 private:
  // Products that read what another makes, unless that one gets an axis itself.
  std::unordered_map<std::size_t, Matrix> followers() const {
    std::unordered_map<std::size_t, Matrix> chosen;
    std::unordered_map<std::string, std::size_t> behind;  // values: the product that they come from
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      const auto& node = model_.graph.nodes[n];
      std::optional<std::size_t> source;
      for (const auto& input : node.inputs()) {
        if (const auto found = behind.find(input); found != behind.end()) source = found->second;
      }
      if (const auto matrix = matrix_of(node)) {
        if (source && !chosen.contains(*source)) chosen.emplace(n, *matrix);
        source = n;
      } else if (!hands_on(node)) {
        source.reset();
      }
      if (!source) continue;
      for (const auto& output : node.outputs()) behind.insert_or_assign(output, *source);
    }
    return chosen;
  }

  // Of a product of a matrix with few rows, or as many as its user likes, and a constant.
  std::optional<Matrix> matrix_of(const onnx::Node& node) const {
    if (!is_matrix_product(node) || node.body() != 0) return std::nullopt;
    Matrix matrix;
    matrix.weight = float32_constant(model_, index_, node, kWeightInput);
    if (matrix.weight == nullptr || matrix.weight->dims.size() != 2 || matrix.weight->count() == 0) return std::nullopt;
    const auto found = types_.find(node.inputs()[0]);
    if (found == types_.end() || !found->second.shape || found->second.shape->size() != 2) return std::nullopt;
    if (found->second.shape->front().value > kFewRows) return std::nullopt;
    if (node.is("MatMul")) return matrix;
    const auto* alpha = node.attribute("alpha");
    const auto* beta = node.attribute("beta");
    if (node.int_or("transA", 0) != 0) return std::nullopt;
    matrix.is_turned = node.int_or("transB", 0) != 0;
    matrix.factor = alpha == nullptr ? 1 : alpha->as_float();
    if (node.inputs().size() > 2 && !is_zero(node.inputs()[2])) matrix.bias = node.inputs()[2];
    if (!matrix.bias.empty() && beta != nullptr && beta->as_float() != 1) return std::nullopt;
    return matrix;
  }

  bool is_zero(const std::string& value) const {
    const auto* tensor = float32_constant(model_, index_, value);
    if (tensor == nullptr) return false;
    const auto values = floats_of(*tensor);
    return std::all_of(values.begin(), values.end(), [](float v) { return v == 0; });
  }

  std::string shape(std::vector<std::int64_t> dims) {
    auto name = index_.fresh_name("shape_of_rows");
    added_.push_back(onnx::make_tensor<std::int64_t>(
        name, onnx::DataType::int64, {static_cast<std::int64_t>(dims.size())}, std::span<const std::int64_t>(dims)));
    return name;
  }

  std::string weight_of(const onnx::Node& node, const Matrix& matrix, std::int64_t rows, std::int64_t columns) {
    const auto& name = node.inputs()[kWeightInput];
    if (!matrix.is_turned && matrix.factor == 1) return name;
    auto values = floats_of(*matrix.weight);
    if (matrix.is_turned) values = transposed(values, matrix.weight->dims, {1, 0});
    for (auto& value : values) value *= matrix.factor;
    auto fresh = index_.fresh_name(name + "_matrix");
    added_.push_back(stored_floats(fresh, {rows, columns}, values, store_));
    return fresh;
  }

  void rewrite(const onnx::Node& node, const Matrix& matrix, std::vector<onnx::Node>& nodes) {
    const auto& dims = matrix.weight->dims;
    const auto rows = dims[matrix.is_turned ? 1 : 0], columns = dims[matrix.is_turned ? 0 : 1];
    const auto add = [&](const std::string& type, const std::string& name, std::vector<std::string> inputs) {
      auto output = index_.fresh_name(node.id() + (type == "Reshape" ? "_rows" : "_result"));
      nodes.emplace_back(type, name, std::move(inputs), std::vector{output});
      return output;
    };
    auto value = add("Reshape", index_.fresh_name(node.id() + "_axis"), {node.inputs()[0], shape({1, -1, rows})});
    value = add("MatMul", node.name(), {value, weight_of(node, matrix, rows, columns)});
    if (!matrix.bias.empty()) value = add("Add", index_.fresh_name(node.id() + "_bias"), {value, matrix.bias});
    add("Reshape", index_.fresh_name(node.id() + "_no_axis"), {value, shape({-1, columns})});
    nodes.back().set_output(0, node.outputs()[0]);
  }

  onnx::Model& model_;
  const ValueTypes& types_;
  const Store& store_;
  Index index_;
  std::vector<onnx::Tensor> added_;
};

}  // namespace

Notes add_axis_for_few_rows(onnx::Model& model, const ValueTypes& types, const Store& store) {
  return Rewriter(model, types, store).run();
}

}  // namespace detent::graph
