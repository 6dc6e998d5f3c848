#include "graph/rewrites/product_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/text.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "onnx/write.h"

namespace detent::graph {
namespace {

using onnx::Node;
using Dims = std::vector<std::int64_t>;

class PlainGemms : Rewriter {
 public:
  using Rewriter::Rewriter;

  Notes run() {
    std::size_t changed = 0;
    for (auto& node : model_.graph.nodes) {
      if (!node.is("Gemm")) continue;
      const bool weight = fold_alpha(node), bias = fold_beta(node);
      if (weight || bias) ++changed;
    }
    return finish(changed, "computed into weights and biases: alpha, beta or one bias for all of " +
                               count_with_noun(changed, "Gemm"));
  }

 private:
  bool fold_alpha(onnx::Node& node) {
    const float alpha = node.float_or("alpha", 1);
    const auto* weight = floats(node, kWeightInput);
    if (alpha == 1 || weight == nullptr || only_reader(weight->name) == kNone) return false;
    auto values = floats_of(*weight);
    for (float& value : values) value *= alpha;
    if (!all_finite(values)) return false;
    node.set_input(kWeightInput, add(weight->name + "_scaled", weight->dims, values));
    node.remove_attribute("alpha");
    return true;
  }

  // The result has a row for each of the input, so that a constant of one row is added to each of them.
  bool fold_beta(onnx::Node& node) {
    const float beta = node.float_or("beta", 1);
    const auto* weight = floats(node, kWeightInput);
    if (weight == nullptr && !added_.empty() && added_.back().name == node.inputs()[kWeightInput])
      weight = &added_.back();
    const auto* bias = floats(node, 2);
    if (weight == nullptr || weight->dims.size() != 2 || bias == nullptr) return false;
    const auto outputs = weight->dims[node.int_or("transB", 0) != 0 ? 0 : 1];
    const bool is_row = bias->count() == 1 || (bias->count() == outputs && bias->dims.back() == outputs);
    const bool is_vector = bias->dims.size() == 1 && bias->count() == outputs;
    if (!is_row || (is_vector && beta == 1)) return false;
    auto values = floats_of(*bias);
    values.resize(static_cast<std::size_t>(outputs), values.front());
    for (float& value : values) value = beta == 0 ? 0 : value * beta;
    if (!all_finite(values)) return false;
    node.set_input(2, add(bias->name + "_row", {outputs}, values));
    node.remove_attribute("beta");
    return true;
  }

  static bool all_finite(const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  }
};

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

class FewRowsRewriter : Rewriter {
 public:
  using Rewriter::Rewriter;

  Notes run() {
    const auto chosen = followers();
    std::size_t n = 0;
    rebuild([&](const onnx::Node& node) {
      const auto found = chosen.find(n++);
      if (found == chosen.end()) return false;
      rewrite(node, found->second);
      return true;
    });
    const bool one = chosen.size() == 1;
    return finish(
        chosen.size(),
        fmt::format("{} of few rows get{} a third axis: OpenVINO fuses two such layers, and computes them wrongly "
                    "without a bias",
                    count_with_noun(chosen.size(), "layer"), one ? "s" : ""));
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
    matrix.weight = floats(node, kWeightInput);
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

  std::string weight_of(const onnx::Node& node, const Matrix& matrix, std::int64_t rows, std::int64_t columns) {
    const auto& name = node.inputs()[kWeightInput];
    if (!matrix.is_turned && matrix.factor == 1) return name;
    auto values = floats_of(*matrix.weight);
    if (matrix.is_turned) values = transposed(values, matrix.weight->dims, {1, 0});
    for (auto& value : values) value *= matrix.factor;
    return add(name + "_matrix", {rows, columns}, values);
  }

  void rewrite(const onnx::Node& node, const Matrix& matrix) {
    const auto& dims = matrix.weight->dims;
    const auto rows = dims[matrix.is_turned ? 1 : 0], columns = dims[matrix.is_turned ? 0 : 1];
    const auto step = [&](const std::string& type, const std::string& name, std::vector<std::string> inputs) {
      return add(node, type, name, std::move(inputs), fresh(node.id() + (type == "Reshape" ? "_rows" : "_result")));
    };
    const auto shape = [&](const Dims& of) { return add_ints("shape_of_rows", of); };
    auto value = step("Reshape", fresh(node.id() + "_axis"), {node.inputs()[0], shape({1, -1, rows})});
    value = step("MatMul", node.name(), {value, weight_of(node, matrix, rows, columns)});
    if (!matrix.bias.empty()) value = step("Add", fresh(node.id() + "_bias"), {value, matrix.bias});
    step("Reshape", fresh(node.id() + "_no_axis"), {value, shape({-1, columns})});
    nodes_.back().set_output(0, node.outputs()[0]);
  }
};

constexpr double kMuchLarger = 16;
constexpr std::size_t kMostParts = 8;

// A constant input of which each channel of the result takes its own slice.
struct Sliced {
  std::size_t node, input, axis;  // the node's place in Product::nodes
  const onnx::Tensor* tensor;     // of the model: valid while its initializers are not touched
};

struct Product {
  std::vector<std::size_t> nodes;  // the product, then what it alone feeds and what works on each element by itself
  std::vector<Sliced> constants;   // the weight first
  std::int64_t axis = 0;           // of the channels in the result
  std::size_t rank = 0;            // of the result
  std::size_t channels = 0;
};

std::size_t slices_before(const onnx::Tensor& t, std::size_t axis) {
  return static_cast<std::size_t>(std::accumulate(t.dims.begin(), t.dims.begin() + static_cast<std::ptrdiff_t>(axis),
                                                  std::int64_t{1}, std::multiplies<>()));
}

// Reads the channels' numbers one after the other: [outer, channels, inner].
template <typename Use>
void for_each_number(const Sliced& sliced, std::size_t channels, Use use) {
  const auto& tensor = *sliced.tensor;
  const auto inner = static_cast<std::size_t>(tensor.count()) / (slices_before(tensor, sliced.axis) * channels);
  onnx::for_each_float(tensor.data, [&](std::span<const float> values, std::int64_t first) {
    auto at = static_cast<std::size_t>(first);
    for (const float value : values) use(at++ / inner % channels, value);
  });
}

std::optional<Sliced> weight_of(const onnx::Model& model, const Index& index, const Node& node) {
  const auto* weight = node.inputs().size() < 2 ? nullptr : float32_constant(model, index, node, 1);
  if (weight == nullptr || weight->count() == 0 || weight->dims.size() < 2) return std::nullopt;
  const bool one_group = node.int_or("group", 1) == 1;
  if (node.is("Conv") && one_group) return Sliced{0, 1, 0, weight};
  if (node.is("ConvTranspose") && one_group) return Sliced{0, 1, 1, weight};
  if (weight->dims.size() != 2) return std::nullopt;
  if (node.is("MatMul")) return Sliced{0, 1, 1, weight};
  if (node.is("Gemm")) return Sliced{0, 1, node.int_or("transB", 0) != 0 ? std::size_t{0} : std::size_t{1}, weight};
  return std::nullopt;
}

// Where the constant has one number for each channel and is 1 along the other axes of the result.
bool is_of_channels(const onnx::Tensor& tensor, const Product& product, std::size_t& axis) {
  const auto behind = product.rank - 1 - static_cast<std::size_t>(product.axis);
  if (tensor.count() != static_cast<std::int64_t>(product.channels) || tensor.dims.size() < behind + 1 ||
      tensor.dims.size() > product.rank)
    return false;
  axis = tensor.dims.size() - 1 - behind;
  return tensor.dims[axis] == tensor.count();
}

bool works_by_element(const Node& node) { return has_trait(node, Trait::clips) || node.is("LeakyRelu"); }

// The nodes behind the product that can be had once for each part.
void follow(const onnx::Model& model, const Index& index, Product& product) {
  for (;;) {
    const auto& value = model.graph.nodes[product.nodes.back()].outputs().front();
    const int reader = only_reader(index, value);
    if (reader == kNone) return;
    const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
    if (node.is("Add")) {
      const std::size_t input = node.inputs()[0] == value ? 1 : 0;
      const auto* summand = float32_constant(model, index, node, input);
      std::size_t axis = 0;
      if (summand == nullptr || !is_of_channels(*summand, product, axis)) return;
      product.constants.push_back({product.nodes.size(), input, axis, summand});
    } else if (!works_by_element(node)) {
      return;
    }
    product.nodes.push_back(static_cast<std::size_t>(reader));
  }
}

std::optional<Product> product_at(const onnx::Model& model, const ValueTypes& types, const Index& index,
                                  std::size_t n) {
  const auto& node = model.graph.nodes[n];
  const auto weight = node.body() == 0 ? weight_of(model, index, node) : std::nullopt;
  const auto rank = weight ? rank_of(types, node.outputs().front()) : std::nullopt;
  if (!rank || *rank < 2) return std::nullopt;
  Product product;
  product.nodes = {n};
  product.constants = {*weight};
  product.rank = *rank;
  product.axis = node.is("MatMul") ? static_cast<std::int64_t>(*rank) - 1 : 1;
  product.channels = static_cast<std::size_t>(weight->tensor->dims[weight->axis]);
  if (node.inputs().size() > 2 && !node.inputs()[2].empty()) {
    const auto* bias = float32_constant(model, index, node, 2);
    std::size_t axis = 0;
    if (bias == nullptr) return std::nullopt;
    if (node.is("Gemm") ? !is_of_channels(*bias, product, axis) : bias->dims.size() != 1) return std::nullopt;
    product.constants.push_back({0, 2, axis, bias});
  }
  follow(model, index, product);
  return product;
}

// How large the channels become where the values that are multiplied are near 1.
std::vector<double> sizes_of(const Product& product) {
  std::vector<double> sizes(product.channels);
  for_each_number(product.constants.front(), product.channels,
                  [&](std::size_t c, double value) { sizes[c] += value * value; });
  for (auto& size : sizes) size = std::sqrt(size);
  for (std::size_t i = 1; i < product.constants.size(); ++i) {
    for_each_number(product.constants[i], product.channels,
                    [&](std::size_t c, double value) { sizes[c] += std::abs(value); });
  }
  return sizes;
}

// The number of channels in each part; empty: they are of one size, or nobody parts them.
using Parts = std::vector<std::size_t>;

Parts runs_of(const std::vector<double>& sizes) {
  const double largest = *std::max_element(sizes.begin(), sizes.end());
  Parts parts;
  bool small = false;
  for (std::size_t c = 0; c < sizes.size(); ++c) {
    const bool is_small = sizes[c] == 0 ? small : sizes[c] * kMuchLarger <= largest;
    if (parts.empty() || is_small != small) parts.push_back(0);
    small = is_small;
    ++parts.back();
  }
  return parts.size() > 1 && parts.size() <= kMostParts ? parts : Parts();
}

// The Split that alone reads the result and parts its channels, with what it gives each output.
int split_behind(const onnx::Model& model, const Index& index, const Product& product, Parts& parts) {
  const int reader = only_reader(index, model.graph.nodes[product.nodes.back()].outputs().front());
  if (reader == kNone) return kNone;
  const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
  const auto axis = node.int_or("axis", 0), rank = static_cast<std::int64_t>(product.rank);
  const auto count = node.outputs().size();
  if (!node.is("Split") || (axis < 0 ? axis + rank : axis) != product.axis || count == 0) return kNone;
  for (const auto& output : node.outputs())
    if (output.empty()) return kNone;
  std::vector<std::int64_t> given(count, static_cast<std::int64_t>(product.channels / count));
  if (const auto* sizes = node.attribute("split"); sizes != nullptr) {
    given = sizes->as_ints();
  } else if (node.inputs().size() > 1 && !node.inputs()[1].empty()) {
    const int at = index.initializer(node.inputs()[1]);
    const auto& tensors = model.graph.initializers;
    if (at == kNone || tensors[static_cast<std::size_t>(at)].type != onnx::DataType::int64) return kNone;
    given = onnx::to_int64s(tensors[static_cast<std::size_t>(at)]);
  } else if (product.channels % count != 0) {
    return kNone;
  }
  if (given.size() != count || std::any_of(given.begin(), given.end(), [](auto size) { return size <= 0; }) ||
      std::accumulate(given.begin(), given.end(), std::int64_t{0}) != static_cast<std::int64_t>(product.channels))
    return kNone;
  parts.assign(given.begin(), given.end());
  return reader;
}

bool differ(const Parts& parts, const std::vector<double>& sizes) {
  std::vector<double> largest;
  auto at = sizes.begin();
  for (const auto count : parts) {
    largest.push_back(*std::max_element(at, at + static_cast<std::ptrdiff_t>(count)));
    at += static_cast<std::ptrdiff_t>(count);
  }
  const auto [low, high] = std::minmax_element(largest.begin(), largest.end());
  return *low > 0 && *low * kMuchLarger <= *high;
}

onnx::Tensor slice_of(const Sliced& sliced, std::size_t channels, std::size_t first, std::size_t count,
                      std::string name, const Store& store) {
  std::vector<float> taken;
  for_each_number(sliced, channels, [&](std::size_t c, float value) {
    if (c >= first && c < first + count) taken.push_back(value);
  });
  auto dims = sliced.tensor->dims;
  dims[sliced.axis] = static_cast<std::int64_t>(count);
  return stored_floats(name, std::move(dims), taken, store);
}

class PartRewriter : Rewriter {
 public:
  using Rewriter::Rewriter;

  Notes run(const std::function<bool(const Node&)>& stays) {
    Notes notes;
    for (std::size_t n = 0; n < removed_.size(); ++n) {
      const auto product = stays(model_.graph.nodes[n]) ? std::nullopt : product_at(model_, types_, index_, n);
      if (!product || !moved_from(model_, index_, result_of(*product)).parts) continue;
      const auto sizes = sizes_of(*product);
      Parts parts;
      const int split = split_behind(model_, index_, *product, parts);
      if (split == kNone) parts = runs_of(sizes);
      if (parts.size() < 2 || (split != kNone && !differ(parts, sizes))) continue;
      part_all(*product, parts, split);
      notes.push_back(fmt::format("{} was split into {}: its output channels have very different ranges",
                                  model_.graph.nodes[n].label(), count_with_noun(parts.size(), "layer")));
    }
    if (notes.empty()) return notes;
    remove_nodes(model_, removed_);
    std::move(nodes_.begin(), nodes_.end(), std::back_inserter(model_.graph.nodes));
    move_constants_to_model();
    sort_topologically(model_);
    drop_unused_initializers(model_);
    return notes;
  }

 private:
  std::string result_of(const Product& product) const {
    return model_.graph.nodes[product.nodes.back()].outputs().front();
  }

  void part_all(const Product& product, const Parts& parts, int split) {
    const auto result = result_of(product);
    std::vector<std::string> results;
    std::size_t first = 0;
    for (std::size_t p = 0; p < parts.size(); ++p, first += parts[p - 1]) {
      results.push_back(split != kNone ? node_at(split).outputs()[p] : fresh(fmt::format("{}_{}", result, first)));
      part(product, first, parts[p], results.back());
    }
    for (const auto node : product.nodes) removed_[node] = true;
    if (split != kNone) {
      remove(split);
    } else {
      nodes_.emplace_back("Concat", fresh(result + "_joined"), results, std::vector{result},
                          std::vector{onnx::Attribute::of_int("axis", product.axis)});
    }
  }

  // Channels `first` to `first + count` under the name `result`.
  void part(const Product& product, std::size_t first, std::size_t count, const std::string& result) {
    for (std::size_t k = 0; k < product.nodes.size(); ++k) {
      Node node = model_.graph.nodes[product.nodes[k]];
      if (k > 0)
        node.set_input(node.inputs()[0] == model_.graph.nodes[product.nodes[k - 1]].outputs()[0] ? 0 : 1,
                       nodes_.back().outputs()[0]);
      for (const auto& sliced : product.constants) {
        if (sliced.node != k) continue;
        const auto name = fresh(fmt::format("{}_{}", sliced.tensor->name, first));
        added_.push_back(slice_of(sliced, product.channels, first, count, name, store_));
        node.set_input(sliced.input, name);
      }
      const bool last = k + 1 == product.nodes.size();
      node.set_output(0, last ? result : fresh(fmt::format("{}_{}", node.outputs()[0], first)));
      if (first > 0 && !node.name().empty()) node.set_name(fresh(fmt::format("{}_{}", node.name(), first)));
      nodes_.push_back(std::move(node));
    }
  }
};

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

class EinsumRewriter : Rewriter {
 public:
  using Rewriter::Rewriter;

  enum class Which { of_static_shapes, with_weights };

  Notes run(Which which) {
    std::size_t count = 0;
    rebuild([&](const Node& node) {
      if (!node.is("Einsum") || node.inputs().size() != 2) return false;
      const bool made = which == Which::with_weights ? product_with_weight(node) : product_of(node);
      if (made) ++count;
      return made;
    });
    return finish(count, fmt::format("{} became a MatMul", count_with_noun(count, "Einsum")));
  }

 private:
  // Whether it is one.
  bool product_of(const Node& node) {
    if (node.body() != 0) return false;
    const std::size_t left = constant(node, 0) != nullptr ? 1 : 0;
    const auto e = read_equation(node, left);
    const auto shape = static_shape(types_, node.inputs()[left]), other = shape_of(node, 1 - left);
    const auto* weight = floats(node, 1 - left);
    if (!e || !shape || !other || shape->size() != e->left.size() || other->size() != e->right.size() ||
        constant(node, left) != nullptr)
      return false;
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
    step(node, "MatMul", node.name(), {last_, right});
    if ((is_flat && kept.size() != 1) || added.size() != 1) reshape(node, joined(joined(batch, kept), added));
    transpose(node, order(e->batch + e->kept + e->added, e->result));
    nodes_.back().set_output(0, node.outputs()[0]);
    return true;
  }

  // Of rows of any number, in a value of any rank.
  bool product_with_weight(const Node& node) {
    constexpr std::int64_t kAsBefore = 0;
    const std::size_t left = constant(node, 0) != nullptr ? 1 : 0;
    const auto e = read_equation(node, left);
    const auto* weight = constant(node, 1 - left);
    if (!e || weight == nullptr || constant(node, left) != nullptr) return false;
    const bool is_float = weight->type == onnx::DataType::float32 || weight->type == onnx::DataType::float16 ||
                          weight->type == onnx::DataType::bfloat16;
    if (!is_float || !e->batch.empty() || e->kept.empty() || e->added.empty() || weight->dims.size() != e->right.size())
      return false;
    const auto summed = product(picked(weight->dims, order(e->right, e->summed)));
    const auto added = picked(weight->dims, order(e->right, e->added));
    const auto right = second(node, weight->name, *e, {summed, product(added)});
    const Dims kept(e->kept.size(), kAsBefore);
    last_ = node.inputs()[left];
    transpose(node, order(e->left, e->kept + e->summed));
    if (e->summed.size() != 1) reshape(node, joined(kept, {summed}));
    step(node, "MatMul", node.name(), {last_, right});
    if (added.size() != 1) reshape(node, joined(kept, added));
    transpose(node, order(e->kept + e->added, e->result));
    nodes_.back().set_output(0, node.outputs()[0]);
    return true;
  }

  std::optional<Dims> shape_of(const Node& node, std::size_t input) const {
    const auto* tensor = constant(node, input);
    return tensor == nullptr ? static_shape(types_, node.inputs()[input]) : std::optional(tensor->dims);
  }

  static Dims joined(Dims first, const Dims& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }

  // The right operand, where it is a constant.
  std::string stored(const std::string& name, const onnx::Tensor& weight, const Equation& e, Dims dims) {
    const auto axes = order(e.right, e.batch + e.summed + e.added);
    return add(name + "_matrix", std::move(dims), transposed(floats_of(weight), weight.dims, axes));
  }

  // And where it is not.
  std::string second(const Node& node, const std::string& value, const Equation& e, const Dims& dims) {
    last_ = value;
    transpose(node, order(e.right, e.batch + e.summed + e.added));
    if (e.summed.size() != 1 || e.added.size() != 1) reshape(node, dims);
    return last_;
  }

  void step(const Node& node, const std::string& type, const std::string& name, std::vector<std::string> inputs,
            std::vector<onnx::Attribute> attributes = {}) {
    last_ =
        add(node, type, name, std::move(inputs), fresh(name.empty() ? type : name + "_result"), std::move(attributes));
  }

  void transpose(const Node& node, const Dims& axes) {
    if (std::is_sorted(axes.begin(), axes.end())) return;
    step(node, "Transpose", fresh(node.id() + "_Transpose"), {last_}, {onnx::Attribute::of_ints("perm", axes)});
  }

  void reshape(const Node& node, const Dims& dims) {
    const auto shape = add_ints(node.id() + "_shape", dims);
    step(node, "Reshape", fresh(node.id() + "_Reshape"), {last_, shape});
  }

  std::string last_;  // what the steps of the product at hand have made
};

}  // namespace

Notes plain_gemms(onnx::Model& model, const Store& store) { return PlainGemms(model, {}, store).run(); }

Notes add_axis_for_few_rows(onnx::Model& model, const ValueTypes& types, const Store& store) {
  return FewRowsRewriter(model, types, store).run();
}

Notes part_products(onnx::Model& model, const ValueTypes& types, const std::function<bool(const Node&)>& stays,
                    const Store& store) {
  return PartRewriter(model, types, store).run(stays);
}

Notes einsums_to_matmuls(onnx::Model& model, const ValueTypes& types, const Store& store) {
  return EinsumRewriter(model, types, store).run(EinsumRewriter::Which::of_static_shapes);
}

Notes einsums_with_weights(onnx::Model& model) {
  return EinsumRewriter(model).run(EinsumRewriter::Which::with_weights);
}

}  // namespace detent::graph
