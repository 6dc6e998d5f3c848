#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "graph/constants.h"
#include "graph/index.h"
#include "graph/moved_values.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

using onnx::Node;

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

bool works_by_element(const Node& node) { return node.is("Relu") || node.is("LeakyRelu") || node.is("Clip"); }

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

struct Rewrite {
  onnx::Model& model;
  Index& index;
  const Store& store;
  std::vector<onnx::Tensor> tensors = {};

  // Channels `first` to `first + count` under the name `result`.
  std::vector<Node> part(const Product& product, std::size_t first, std::size_t count, const std::string& result) {
    std::vector<Node> made;
    for (std::size_t k = 0; k < product.nodes.size(); ++k) {
      Node node = model.graph.nodes[product.nodes[k]];
      if (k > 0)
        node.set_input(node.inputs()[0] == model.graph.nodes[product.nodes[k - 1]].outputs()[0] ? 0 : 1,
                       made.back().outputs()[0]);
      for (const auto& sliced : product.constants) {
        if (sliced.node != k) continue;
        const auto name = index.fresh_name(fmt::format("{}_{}", sliced.tensor->name, first));
        tensors.push_back(slice_of(sliced, product.channels, first, count, name, store));
        node.set_input(sliced.input, name);
      }
      const bool last = k + 1 == product.nodes.size();
      node.set_output(0, last ? result : index.fresh_name(fmt::format("{}_{}", node.outputs()[0], first)));
      if (first > 0 && !node.name().empty()) node.set_name(index.fresh_name(fmt::format("{}_{}", node.name(), first)));
      made.push_back(std::move(node));
    }
    return made;
  }
};

}  // namespace

Notes part_products(onnx::Model& model, const ValueTypes& types, const std::function<bool(const Node&)>& stays,
                    const Store& store) {
  Index index(model);
  Rewrite rewrite{model, index, store};
  std::vector<bool> removed(model.graph.nodes.size());
  std::vector<Node> made;
  Notes notes;
  for (std::size_t n = 0; n < removed.size(); ++n) {
    const auto product = stays(model.graph.nodes[n]) ? std::nullopt : product_at(model, types, index, n);
    if (!product) continue;
    const auto result = model.graph.nodes[product->nodes.back()].outputs().front();
    if (!moved_from(model, index, result).parts) continue;
    const auto sizes = sizes_of(*product);
    Parts parts;
    const int split = split_behind(model, index, *product, parts);
    if (split == kNone) parts = runs_of(sizes);
    if (parts.size() < 2 || (split != kNone && !differ(parts, sizes))) continue;
    std::vector<std::string> results;
    std::size_t first = 0;
    for (std::size_t p = 0; p < parts.size(); ++p, first += parts[p - 1]) {
      results.push_back(split != kNone ? model.graph.nodes[static_cast<std::size_t>(split)].outputs()[p]
                                       : index.fresh_name(fmt::format("{}_{}", result, first)));
      for (auto& node : rewrite.part(*product, first, parts[p], results.back())) made.push_back(std::move(node));
    }
    notes.push_back(fmt::format("{} is {} products: the size of its channels differs much",
                                model.graph.nodes[n].label(), parts.size()));
    for (const auto node : product->nodes) removed[node] = true;
    if (split != kNone) {
      removed[static_cast<std::size_t>(split)] = true;
    } else {
      const auto name = index.fresh_name(result + "_joined");
      made.emplace_back("Concat", name, results, std::vector{result},
                        std::vector{onnx::Attribute::of_int("axis", product->axis)});
    }
  }
  if (notes.empty()) return notes;
  remove_nodes(model, removed);
  model.graph.nodes.insert(model.graph.nodes.end(), made.begin(), made.end());
  model.graph.initializers.insert(model.graph.initializers.end(), rewrite.tensors.begin(), rewrite.tensors.end());
  sort_topologically(model);
  drop_unused_initializers(model);
  return notes;
}

}  // namespace detent::graph
