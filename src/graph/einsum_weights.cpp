#include "graph/einsum_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "onnx/write.h"

namespace detent::graph {
namespace {

using onnx::Node;
using Dims = std::vector<std::int64_t>;

bool has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

bool is_plain(const std::string& letters) {
  std::string sorted = letters;
  std::sort(sorted.begin(), sorted.end());
  return std::all_of(letters.begin(), letters.end(), [](char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }) &&
         std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

// A letter for each axis. Sums over `summed`, the axes of both operands; `kept` are those of the value alone, `added`
// those of the constant alone, in the order of the result.
struct Equation {
  std::string value, constant, result, summed, kept, added;
};

std::optional<Equation> read_equation(const Node& node, std::size_t constant) {
  const auto* attribute = node.attribute("equation");
  auto text = attribute == nullptr ? std::string() : attribute->as_string();
  std::erase(text, ' ');
  const auto comma = text.find(','), arrow = text.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma > arrow) return std::nullopt;
  const std::string terms[] = {text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1)};
  Equation e{terms[1 - constant], terms[constant], text.substr(arrow + 2), {}, {}, {}};
  if (!is_plain(e.value) || !is_plain(e.constant) || !is_plain(e.result)) return std::nullopt;
  for (const char c : e.value) {
    if (has(e.constant, c) == has(e.result, c)) return std::nullopt;  // along both, or summed up alone
    (has(e.constant, c) ? e.summed : e.kept) += c;
  }
  for (const char c : e.result) {
    if (!has(e.value, c)) e.added += c;
  }
  const bool is_whole = e.result.size() == e.kept.size() + e.added.size() &&
                        e.constant.size() == e.summed.size() + e.added.size() &&
                        std::all_of(e.added.begin(), e.added.end(), [&](char c) { return has(e.constant, c); });
  return is_whole && !e.summed.empty() && !e.kept.empty() ? std::optional(e) : std::nullopt;
}

// Where the letters of `to` stand in `from`.
Dims order(const std::string& from, const std::string& to) {
  Dims axes;
  for (const char c : to) axes.push_back(static_cast<std::int64_t>(from.find(c)));
  return axes;
}

Dims picked(const Dims& shape, const Dims& axes) {
  Dims dims;
  for (const auto axis : axes) dims.push_back(shape[static_cast<std::size_t>(axis)]);
  return dims;
}

std::int64_t product(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<float> transposed(const std::vector<float>& values, const Dims& shape, const Dims& axes) {
  Dims strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  const auto dims = picked(shape, axes), steps = picked(strides, axes);
  std::vector<float> out;
  out.reserve(values.size());
  Dims at(dims.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    out.push_back(
        values[static_cast<std::size_t>(std::inner_product(at.begin(), at.end(), steps.begin(), std::int64_t{0}))]);
    for (std::size_t d = dims.size(); d-- > 0 && ++at[d] == dims[d];) at[d] = 0;
  }
  return out;
}

class Rewriter {
 public:
  Rewriter(onnx::Model& model, const ValueTypes& types, const Store& store)
      : model_(model), types_(types), store_(store), index_(model) {}

  Notes run() {
    std::vector<Node> nodes;
    std::size_t count = 0;
    for (auto& node : model_.graph.nodes) {
      const auto made =
          node.is("Einsum") && node.body() == 0 && node.inputs().size() == 2 ? product_of(node) : std::vector<Node>();
      count += made.empty() ? 0 : 1;
      if (made.empty()) nodes.push_back(std::move(node));
      nodes.insert(nodes.end(), made.begin(), made.end());
    }
    model_.graph.nodes = std::move(nodes);
    if (count == 0) return {};
    for (auto& tensor : added_) model_.graph.initializers.push_back(std::move(tensor));
    drop_unused_initializers(model_);
    return {fmt::format("{} with a constant became a MatMul", counted(count, "Einsum"))};
  }

 private:
  // Empty where it is none.
  std::vector<Node> product_of(const Node& node) {
    const std::size_t constant = index_.initializer(node.inputs()[0]) != kNone ? 0 : 1;
    const auto* weight = float_constant(model_, index_, node, constant);
    const auto& value = node.inputs()[1 - constant];
    const auto shape = static_shape(types_, value);
    const auto e = read_equation(node, constant);
    if (weight == nullptr || index_.initializer(value) != kNone || !shape || !e || shape->size() != e->value.size() ||
        weight->dims.size() != e->constant.size())
      return {};
    const auto axes = order(e->constant, e->summed + e->added);
    const auto summed = product(picked(weight->dims, order(e->constant, e->summed)));
    const auto added = picked(weight->dims, order(e->constant, e->added));
    const auto matrix = index_.fresh_name(node.inputs()[constant] + "_matrix");
    added_.push_back(
        stored_floats(matrix, {summed, product(added)}, transposed(floats_of(*weight), weight->dims, axes), store_));
    steps_.clear();
    last_ = value;
    transpose(node, order(e->value, e->kept + e->summed));
    auto dims = picked(*shape, order(e->value, e->kept));
    if (e->summed.size() != 1) reshape(node, dims, {summed});
    add(Node("MatMul", node.name(), {last_, matrix}, {""}));
    if (e->added.size() != 1) reshape(node, dims, added);
    transpose(node, order(e->kept + e->added, e->result));
    steps_.back().set_output(0, node.outputs()[0]);
    return std::move(steps_);
  }

  void add(Node step) {
    last_ = index_.fresh_name(step.name().empty() ? step.op_type() : step.name() + "_result");
    step.set_output(0, last_);
    steps_.push_back(std::move(step));
  }

  void transpose(const Node& node, const Dims& axes) {
    if (std::is_sorted(axes.begin(), axes.end())) return;
    add(Node("Transpose", index_.fresh_name(node.id() + "_Transpose"), {last_}, {""},
             {onnx::Attribute::of_ints("perm", axes)}));
  }

  void reshape(const Node& node, Dims dims, const Dims& last) {
    dims.insert(dims.end(), last.begin(), last.end());
    const auto shape = index_.fresh_name(node.id() + "_shape");
    added_.push_back(
        onnx::make_tensor<std::int64_t>(shape, onnx::DataType::int64, {static_cast<std::int64_t>(dims.size())}, dims));
    add(Node("Reshape", index_.fresh_name(node.id() + "_Reshape"), {last_, shape}, {""}));
  }

  onnx::Model& model_;
  const ValueTypes& types_;
  const Store& store_;
  Index index_;
  std::vector<onnx::Tensor> added_;
  std::vector<Node> steps_;  // of the product at hand
  std::string last_;         // what they have made
};

}  // namespace

Notes multiply_einsums(onnx::Model& model, const ValueTypes& types, const Store& store) {
  return Rewriter(model, types, store).run();
}

}  // namespace detent::graph
