#include "graph/rewrites/einsum_weights.h"

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

// A letter for each axis. Both operands and the result go along `batch`, the sum goes over `summed`, `kept` are those
// of the left operand alone, `added` those of the right one.
struct Equation {
  std::string left, right, result, batch, summed, kept, added;
};

std::optional<Equation> read_equation(const Node& node, std::size_t left) {
  const auto* attribute = node.attribute("equation");
  auto text = attribute == nullptr ? std::string() : attribute->as_string();
  std::erase(text, ' ');
  const auto comma = text.find(','), arrow = text.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma > arrow) return std::nullopt;
  const std::string terms[] = {text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1)};
  Equation e{terms[left], terms[1 - left], text.substr(arrow + 2), {}, {}, {}, {}};
  if (!is_plain(e.left) || !is_plain(e.right) || !is_plain(e.result)) return std::nullopt;
  for (const char c : e.left) {
    if (!has(e.right, c) && !has(e.result, c)) return std::nullopt;  // summed up alone
    (!has(e.right, c) ? e.kept : has(e.result, c) ? e.batch : e.summed) += c;
  }
  for (const char c : e.result) {
    if (!has(e.left, c)) e.added += c;
  }
  const bool is_whole = e.result.size() == e.batch.size() + e.kept.size() + e.added.size() &&
                        e.right.size() == e.batch.size() + e.summed.size() + e.added.size() &&
                        std::all_of(e.added.begin(), e.added.end(), [&](char c) { return has(e.right, c); });
  return is_whole && !e.summed.empty() ? std::optional(e) : std::nullopt;
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

class Rewriter {
 public:
  Rewriter(onnx::Model& model, const ValueTypes& types, const Store& store)
      : model_(model), types_(types), store_(store), index_(model) {}

  enum class Which { of_static_shapes, with_weights };

  Notes run(Which which) {
    std::vector<Node> nodes;
    std::size_t count = 0;
    for (auto& node : model_.graph.nodes) {
      std::vector<Node> made;
      if (node.is("Einsum") && node.inputs().size() == 2) {
        if (which == Which::with_weights) made = product_with_weight(node);
        if (which == Which::of_static_shapes && node.body() == 0) made = product_of(node);
      }
      count += made.empty() ? 0 : 1;
      if (made.empty()) nodes.push_back(std::move(node));
      nodes.insert(nodes.end(), made.begin(), made.end());
    }
    model_.graph.nodes = std::move(nodes);
    if (count == 0) return {};
    for (auto& tensor : added_) model_.graph.initializers.push_back(std::move(tensor));
    drop_unused_initializers(model_);
    return {fmt::format("{} became a MatMul", count_with_noun(count, "Einsum"))};
  }

 private:
  // Empty where it is none.
  std::vector<Node> product_of(const Node& node) {
    const std::size_t left = index_.initializer(node.inputs()[0]) != kNone ? 1 : 0;
    const auto e = read_equation(node, left);
    const auto shape = static_shape(types_, node.inputs()[left]), other = shape_of(node.inputs()[1 - left]);
    const auto* weight = float32_constant(model_, index_, node, 1 - left);
    if (!e || !shape || !other || shape->size() != e->left.size() || other->size() != e->right.size() ||
        index_.initializer(node.inputs()[left]) != kNone)
      return {};
    steps_.clear();
    const auto batch = picked(*shape, order(e->left, e->batch)), kept = picked(*shape, order(e->left, e->kept));
    const auto summed = product(picked(*shape, order(e->left, e->summed)));
    const auto added = picked(*other, order(e->right, e->added));
    const auto right = weight != nullptr
                           ? stored(node.inputs()[1 - left], *weight, *e, joined(batch, {summed, product(added)}))
                           : second(node, node.inputs()[1 - left], *e, joined(batch, {summed, product(added)}));
    last_ = node.inputs()[left];
    transpose(node, order(e->left, e->batch + e->kept + e->summed));
    const bool is_flat = weight == nullptr || !batch.empty() || kept.empty();
    const auto rows = is_flat ? joined(batch, {product(kept)}) : kept;
    if ((is_flat && kept.size() != 1) || e->summed.size() != 1) reshape(node, joined(rows, {summed}));
    add(Node("MatMul", node.name(), {last_, right}, {""}));
    if ((is_flat && kept.size() != 1) || added.size() != 1) reshape(node, joined(joined(batch, kept), added));
    transpose(node, order(e->batch + e->kept + e->added, e->result));
    steps_.back().set_output(0, node.outputs()[0]);
    return std::move(steps_);
  }

  // Of rows of any number, in a value of any rank.
  std::vector<Node> product_with_weight(const Node& node) {
    constexpr std::int64_t kAsBefore = 0;
    const std::size_t left = index_.initializer(node.inputs()[0]) != kNone ? 1 : 0;
    const auto& weight = node.inputs()[1 - left];
    const int position = index_.initializer(weight);
    const auto e = read_equation(node, left);
    if (!e || position == kNone || index_.initializer(node.inputs()[left]) != kNone) return {};
    const auto& tensor = model_.graph.initializers[static_cast<std::size_t>(position)];
    const bool is_float = tensor.type == onnx::DataType::float32 || tensor.type == onnx::DataType::float16 ||
                          tensor.type == onnx::DataType::bfloat16;
    if (!is_float || !e->batch.empty() || e->kept.empty() || e->added.empty() || tensor.dims.size() != e->right.size())
      return {};
    steps_.clear();
    const auto summed = product(picked(tensor.dims, order(e->right, e->summed)));
    const auto added = picked(tensor.dims, order(e->right, e->added));
    const auto right = second(node, weight, *e, {summed, product(added)});
    const Dims kept(e->kept.size(), kAsBefore);
    last_ = node.inputs()[left];
    transpose(node, order(e->left, e->kept + e->summed));
    if (e->summed.size() != 1) reshape(node, joined(kept, {summed}));
    add(Node("MatMul", node.name(), {last_, right}, {""}));
    if (added.size() != 1) reshape(node, joined(kept, added));
    transpose(node, order(e->kept + e->added, e->result));
    steps_.back().set_output(0, node.outputs()[0]);
    for (auto& step : steps_) step.set_body(node.body());
    return std::move(steps_);
  }

  std::optional<Dims> shape_of(const std::string& value) const {
    const int position = index_.initializer(value);
    return position == kNone ? static_shape(types_, value)
                             : std::optional(model_.graph.initializers[static_cast<std::size_t>(position)].dims);
  }

  static Dims joined(Dims first, const Dims& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }

  // The right operand, where it is a constant.
  std::string stored(const std::string& name, const onnx::Tensor& weight, const Equation& e, Dims dims) {
    const auto axes = order(e.right, e.batch + e.summed + e.added);
    auto matrix = index_.fresh_name(name + "_matrix");
    added_.push_back(stored_floats(matrix, std::move(dims), transposed(floats_of(weight), weight.dims, axes), store_));
    return matrix;
  }

  // And where it is not.
  std::string second(const Node& node, const std::string& value, const Equation& e, const Dims& dims) {
    last_ = value;
    transpose(node, order(e.right, e.batch + e.summed + e.added));
    if (e.summed.size() != 1 || e.added.size() != 1) reshape(node, dims);
    return last_;
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

  void reshape(const Node& node, const Dims& dims) {
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

Notes einsums_to_matmuls(onnx::Model& model, const ValueTypes& types, const Store& store) {
  return Rewriter(model, types, store).run(Rewriter::Which::of_static_shapes);
}

Notes einsums_with_weights(onnx::Model& model) {
  const auto nowhere = [](std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); };
  return Rewriter(model, {}, nowhere).run(Rewriter::Which::with_weights);
}

}  // namespace detent::graph
