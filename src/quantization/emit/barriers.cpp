#include "quantization/emit/barriers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include "graph/operators.h"
#include "graph/traits.h"
#include "onnx/packed_numbers.h"
#include "quantization/placement/rules.h"

namespace detent::quantization {
namespace {

using onnx::Node;

const Node& node_at(const onnx::Model& model, int position) {
  return model.graph.nodes[static_cast<std::size_t>(position)];
}

// What the optimizer takes: products that may have a bias.
bool is_layer(const Node& node) {
  const auto& traits = graph::traits_of(node);
  return traits.is(graph::Trait::product) && traits.bias != graph::OperatorTraits::kNoInput;
}

// Reads a value with one scale and has float weights.
bool is_between_integers_in_float(const onnx::Model& model, const graph::Index& index, const Node& node) {
  const int dequantize = index.producer(node.inputs()[0]);
  const int weight = index.initializer(node.inputs()[1]);
  if (dequantize == graph::kNone || weight == graph::kNone) return false;
  const auto& before = node_at(model, dequantize);
  if (!graph::is_dequantize_linear(before)) return false;
  const int scale = index.initializer(before.inputs()[1]);
  const auto& tensors = model.graph.initializers;
  return scale != graph::kNone && tensors[static_cast<std::size_t>(scale)].count() == 1 &&
         tensors[static_cast<std::size_t>(weight)].type == onnx::DataType::float32;
}

// Over which the optimizer carries integers.
bool is_carrier(const Node& node) { return graph::is_on(node, graph::List::carries_pairs); }

// The QuantizeLinear that the layer's output goes to, or kNone.
int quantizer_behind(const onnx::Model& model, const graph::Index& index, const Node& layer) {
  const auto* node = &layer;
  while (true) {
    const auto readers = index.consumers(node->outputs()[0]);
    if (readers.size() != 1) return graph::kNone;
    node = &node_at(model, readers.front());
    if (graph::is_quantize_linear(*node)) return readers.front();
    if (!graph::has_trait(*node, graph::Trait::clips) && !is_carrier(*node)) return graph::kNone;
  }
}

// The QuantizeLinear that makes integers of a pooling in float, or kNone.
int quantizer_of_float_pool(const onnx::Model& model, const graph::Index& index, const Node& node) {
  if (!node.is("MaxPool")) return graph::kNone;
  const int producer = index.producer(node.inputs()[0]);
  if (producer != graph::kNone && graph::is_dequantize_linear(node_at(model, producer))) return graph::kNone;
  for (const int reader : index.consumers(node.outputs()[0])) {
    if (graph::is_quantize_linear(node_at(model, reader))) return reader;
  }
  return graph::kNone;
}

// Whether a body reads the value.
bool is_read_within(const onnx::Model& model, const graph::Index& index, const std::string& value, int body) {
  const auto readers = index.consumers(value);
  return index.is_captured(value) ||
         std::any_of(readers.begin(), readers.end(), [&](int n) { return node_at(model, n).body() != body; });
}

// Of what a body reads, the node on its way there that reads a dequantized value, or kNone.
int carrier_into_body(const onnx::Model& model, const graph::Index& index, const Node& last) {
  if (!is_carrier(last) || !is_read_within(model, index, last.outputs()[0], last.body())) return graph::kNone;
  int at = index.producer(last.outputs()[0]);
  while (at != graph::kNone && is_carrier(node_at(model, at))) {
    const int before = index.producer(node_at(model, at).inputs()[0]);
    if (before != graph::kNone && graph::is_dequantize_linear(node_at(model, before))) return at;
    at = before;
  }
  return graph::kNone;
}

// A product in a body of 4-bit weights.
bool has_narrow_weights_in_body(const onnx::Model& model, const graph::Index& index, const Node& node) {
  if (node.body() == 0 || !graph::is_matrix_product(node)) return false;
  const int producer = index.producer(node.inputs()[graph::kWeightInput]);
  if (producer == graph::kNone || !graph::is_dequantize_linear(node_at(model, producer))) return false;
  const int integers = index.initializer(node_at(model, producer).inputs()[0]);
  return integers != graph::kNone &&
         onnx::bits_of(model.graph.initializers[static_cast<std::size_t>(integers)].type) <= 4;
}

// Whether an operand comes from a Transpose that moves the first of three axes and more; casts and the like between
// them go while the runtime loads the model.
bool is_transposed(const onnx::Model& model, const graph::Index& index, const std::string& operand) {
  for (int at = index.producer(operand); at != graph::kNone; at = index.producer(node_at(model, at).inputs()[0])) {
    const auto& node = node_at(model, at);
    if (node.is("Transpose")) {
      const auto* axes = node.attribute("perm");
      return axes != nullptr && axes->as_ints().size() > 2 && axes->as_ints().front() != 0;
    }
    if (!node.is("Cast") && !node.is("Identity") && !node.is("Dropout") && !node.is("Reshape")) return false;
  }
  return false;
}

bool is_float16_matrix(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int tensor = index.initializer(value);
  if (tensor == graph::kNone) return false;
  const auto& matrix = model.graph.initializers[static_cast<std::size_t>(tensor)];
  return matrix.type == onnx::DataType::float16 && matrix.dims.size() == 2;
}

const onnx::Tensor* constant(const onnx::Model& model, const graph::Index& index, const Node& node, std::size_t input) {
  const int tensor = input < node.inputs().size() ? index.initializer(node.inputs()[input]) : graph::kNone;
  return tensor == graph::kNone ? nullptr : &model.graph.initializers[static_cast<std::size_t>(tensor)];
}

void for_each_half(const onnx::Tensor& tensor, const std::function<void(double)>& visit) {
  tensor.data.write_to([&](std::span<const std::byte> bytes) {  // converted while it is written
    for (std::size_t at = 0; at + sizeof(std::uint16_t) <= bytes.size(); at += sizeof(std::uint16_t)) {
      std::uint16_t half = 0;
      std::memcpy(&half, bytes.data() + at, sizeof(half));
      visit(onnx::from_float16(half));
    }
  });
}

// The smallest float16 scale of what a DequantizeLinear makes; nullopt: the value comes from none.
std::optional<double> smallest_float16_scale(const onnx::Model& model, const graph::Index& index,
                                             const std::string& value) {
  const int producer = index.producer(value);
  if (producer == graph::kNone || !graph::is_dequantize_linear(node_at(model, producer))) return std::nullopt;
  const auto* scale = constant(model, index, node_at(model, producer), 1);
  if (scale == nullptr || scale->type != onnx::DataType::float16 || scale->count() == 0) return std::nullopt;
  double smallest = std::numeric_limits<double>::infinity();
  for_each_half(*scale, [&](double step) { smallest = std::min(smallest, step); });
  return smallest;
}

bool is_concat_of_integers(const onnx::Model& model, const graph::Index& index, const Node& node) {
  const auto& inputs = node.inputs();
  return node.is("Concat") && std::all_of(inputs.begin(), inputs.end(),
                                          [&](const auto& v) { return smallest_float16_scale(model, index, v); });
}

// Whether what is added to the product would lose digits, or all of them, at the product of the scales, or pass what
// float16 holds when it is divided by that; weights in float get a scale from the runtime.
bool loses_bias_digits(const onnx::Model& model, const graph::Index& index, const onnx::Tensor* bias,
                       const Node& product) {
  constexpr double kSmallestNormal = 0x1p-14, kLargest = 65504;
  const auto scale = smallest_float16_scale(model, index, product.inputs()[0]);
  if (bias == nullptr || bias->type != onnx::DataType::float16 || !scale) return false;
  const auto of_weight = smallest_float16_scale(model, index, product.inputs()[graph::kWeightInput]);
  if (!of_weight || *scale * *of_weight < kSmallestNormal) return true;
  double largest = 0;
  for_each_half(*bias, [&](double number) { largest = std::max(largest, std::abs(number)); });
  return largest > kLargest * *scale * *of_weight;
}

bool loses_bias(const onnx::Model& model, const graph::Index& index, const Node& node) {
  constexpr std::size_t kBias = 2;
  return is_layer(node) && node.inputs().size() > kBias &&
         loses_bias_digits(model, index, constant(model, index, node, kBias), node);
}

// The input of an Add that comes from a MatMul which the runtime would merge with it, with a bias that is lost.
std::optional<std::size_t> lossy_sum(const onnx::Model& model, const graph::Index& index, const Node& node) {
  for (std::size_t i = 0; node.is("Add") && i < 2; ++i) {
    const int producer = index.producer(node.inputs()[i]);
    if (producer == graph::kNone || !node_at(model, producer).is("MatMul")) continue;
    if (loses_bias_digits(model, index, constant(model, index, node, 1 - i), node_at(model, producer))) return i;
  }
  return std::nullopt;
}

bool has_8_bits_of_float(onnx::DataType type) {
  return type == onnx::DataType::float8e4m3fn || type == onnx::DataType::float8e5m2;
}

// The input of an Add that comes from a MatMul of 8-bit floats, with a constant as the other one.
std::optional<std::size_t> sum_of_float8(const onnx::Model& model, const graph::Index& index, const Node& node) {
  for (std::size_t i = 0; node.is("Add") && i < 2; ++i) {
    const int product = index.producer(node.inputs()[i]);
    if (product == graph::kNone || !node_at(model, product).is("MatMul")) continue;
    if (constant(model, index, node, 1 - i) == nullptr) continue;
    const int made = index.producer(node_at(model, product).inputs()[0]);
    if (made == graph::kNone || !graph::is_dequantize_linear(node_at(model, made))) continue;
    const auto* zero_point = constant(model, index, node_at(model, made), 2);
    if (zero_point != nullptr && has_8_bits_of_float(zero_point->type)) return i;
  }
  return std::nullopt;
}

// Whether a DequantizeLinear of which a new pair would be made has one zero point of int8.
bool is_dequantized_int8(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int producer = index.producer(value);
  if (producer == graph::kNone || !graph::is_dequantize_linear(node_at(model, producer))) return false;
  const auto* zero_point = constant(model, index, node_at(model, producer), 2);
  return zero_point != nullptr && zero_point->type == onnx::DataType::int8 && zero_point->count() == 1;
}

// Whether integers would be carried over the node, since not only a QuantizeLinear reads what it moves.
bool carries_int8(const onnx::Model& model, const graph::Index& index, const Node& node) {
  if (!is_carrier(node) || !is_dequantized_int8(model, index, node.inputs()[0])) return false;
  const auto readers = index.consumers(node.outputs()[0]);
  return index.is_output(node.outputs()[0]) || std::any_of(readers.begin(), readers.end(), [&](int n) {
           return !graph::is_quantize_linear(node_at(model, n));
         });
}

// Whether an operand is one of the 8-bit pairs with one scale that products on integers are made of.
bool has_pair_of_8_bits(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int producer = index.producer(value);
  if (producer == graph::kNone || !graph::is_dequantize_linear(node_at(model, producer))) return false;
  const auto* zero_point = constant(model, index, node_at(model, producer), 2);
  return zero_point != nullptr && onnx::bits_of(zero_point->type) == 8;
}

// The input of an Add that comes from a MatMul of int8 that would become a Gemm between Reshapes.
std::optional<std::size_t> reshaped_sum(const onnx::Model& model, const graph::Index& index,
                                        const graph::ValueTypes& types, const Node& node) {
  for (std::size_t i = 0; node.is("Add") && i < 2; ++i) {
    const int product = index.producer(node.inputs()[i]);
    if (product == graph::kNone || !node_at(model, product).is("MatMul")) continue;
    if (graph::rank_of(types, node.inputs()[i]) == 2 || index.consumers(node.inputs()[i]).size() != 1) continue;
    if (graph::rank_of(types, node.inputs()[1 - i]).value_or(1) != 1) continue;
    if (is_dequantized_int8(model, index, node_at(model, product).inputs()[0])) return i;
  }
  return std::nullopt;
}

// Each QuantizeLinear that is to read through a barrier.
std::set<int> need_barriers(const onnx::Model& model, const graph::Index& index) {
  std::set<int> quantizers;
  for (const auto& node : model.graph.nodes) {
    int quantizer = graph::kNone;
    if (is_concat_of_integers(model, index, node)) {
      const auto all = index.consumers(node.outputs()[0]);
      const auto found =
          std::find_if(all.begin(), all.end(), [&](int n) { return graph::is_quantize_linear(node_at(model, n)); });
      if (found != all.end()) quantizer = *found;
    } else if (loses_bias(model, index, node)) {
      quantizer = quantizer_behind(model, index, node);
    }
    if (quantizer != graph::kNone) quantizers.insert(quantizer);
  }
  return quantizers;
}

}  // namespace

void add_float16_barriers(onnx::Model& model) {
  graph::Index index(model);
  const auto quantizers = need_barriers(model, index);
  std::vector<Node> nodes;
  const auto put_before = [&](Node& node, std::size_t input) {
    const auto value = node.inputs()[input];
    const auto apart = index.fresh_name(value + "_apart");
    auto& barrier =
        nodes.emplace_back("Max", index.fresh_name(value + "_Barrier"), std::vector{value}, std::vector{apart});
    barrier.set_body(node.body());
    node.set_input(input, apart);
  };
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    auto& node = model.graph.nodes[n];
    if (quantizers.contains(static_cast<int>(n))) put_before(node, 0);
    if (const auto input = lossy_sum(model, index, node)) put_before(node, *input);
    for (std::size_t i = 0; node.is("MatMul") && i < 2; ++i) {
      const auto operand = node.inputs()[i];
      if (!is_float16_matrix(model, index, node.inputs()[1 - i]) || !is_transposed(model, index, operand)) continue;
      put_before(node, i);
    }
    nodes.push_back(node);
  }
  model.graph.nodes = std::move(nodes);
}

void add_barriers(Emitted& emitted) {
  auto& quantized = emitted.model;
  graph::Index index(quantized);
  std::multimap<int, Node> before;
  for (const auto& node : quantized.graph.nodes) {
    int quantizer = quantizer_of_float_pool(quantized, index, node);
    if (is_layer(node) && node.inputs().size() >= 2 && is_between_integers_in_float(quantized, index, node))
      quantizer = quantizer_behind(quantized, index, node);
    if (quantizer == graph::kNone) continue;
    const std::string value = node_at(quantized, quantizer).inputs()[0];
    before.emplace(quantizer,
                   Node("Max", index.fresh_name(value + "_Barrier"), {value}, {index.fresh_name(value + "_in_float")}));
  }
  insert_before(std::move(before), emitted);
}

void add_barriers_for_loading(Emitted& emitted, const graph::ValueTypes& types) {
  constexpr std::int64_t kOpsetWithTypes = 21;  // the first in which a QuantizeLinear says its type
  const auto& quantized = emitted.model;
  graph::Index index(quantized);
  const bool says_types = quantized.opset() >= kOpsetWithTypes;
  std::multimap<int, Node> before;
  const auto put_before = [&](int reader, const std::string& value) {
    Node barrier("Max", index.fresh_name(value + "_Barrier"), {value}, {index.fresh_name(value + "_apart")});
    barrier.set_body(node_at(quantized, reader).body());
    before.emplace(reader, std::move(barrier));
  };
  for (std::size_t n = 0; n < quantized.graph.nodes.size(); ++n) {
    const auto& node = quantized.graph.nodes[n];
    if (has_narrow_weights_in_body(quantized, index, node))
      put_before(static_cast<int>(n), node.inputs()[graph::kWeightInput]);
    if (says_types && carries_int8(quantized, index, node)) put_before(static_cast<int>(n), node.inputs()[0]);
    if (const auto sum = says_types ? reshaped_sum(quantized, index, types, node) : std::nullopt)
      put_before(static_cast<int>(n), node.inputs()[*sum]);
    if (!is_float_kernel(node)) continue;
    for (const int reader : index.consumers(node.outputs()[0])) {
      if (graph::is_quantize_linear(node_at(quantized, reader))) put_before(reader, node.outputs()[0]);
    }
  }
  insert_before(std::move(before), emitted);
}

void add_barriers_before_bodies(Emitted& emitted) {
  auto& quantized = emitted.model;
  graph::Index index(quantized);
  std::set<int> into_bodies;
  for (const auto& node : quantized.graph.nodes) {
    if (const int carrier = carrier_into_body(quantized, index, node); carrier != graph::kNone)
      into_bodies.insert(carrier);
  }
  std::multimap<int, Node> before;
  for (const int carrier : into_bodies) {
    const auto& reader = node_at(quantized, carrier);
    Node barrier("Max", index.fresh_name(reader.inputs()[0] + "_Barrier"), {reader.inputs()[0]},
                 {index.fresh_name(reader.inputs()[0] + "_apart")});
    barrier.set_body(reader.body());
    before.emplace(carrier, std::move(barrier));
  }
  insert_before(std::move(before), emitted);
}

void add_barriers_before_floats(Emitted& emitted) {
  auto& quantized = emitted.model;
  graph::Index index(quantized);
  std::multimap<int, Node> before;
  const auto put_before = [&](std::size_t reader, const std::string& value) {
    Node barrier("Max", index.fresh_name(value + "_Barrier"), {value}, {index.fresh_name(value + "_apart")});
    barrier.set_body(quantized.graph.nodes[reader].body());
    before.emplace(static_cast<int>(reader), std::move(barrier));
  };
  for (std::size_t n = 0; n < quantized.graph.nodes.size(); ++n) {
    const auto& node = quantized.graph.nodes[n];
    if (const auto input = sum_of_float8(quantized, index, node)) put_before(n, node.inputs()[*input]);
    if (!graph::is_quantize_linear(node)) continue;
    const auto* zero_point = constant(quantized, index, node, 2);
    int producer = index.producer(node.inputs()[0]);
    while (producer != graph::kNone && is_carrier(node_at(quantized, producer)))
      producer = index.producer(node_at(quantized, producer).inputs()[0]);
    if (zero_point == nullptr || !has_8_bits_of_float(zero_point->type) || producer == graph::kNone ||
        !graph::has_trait(node_at(quantized, producer), graph::Trait::clips))
      continue;
    put_before(n, node.inputs()[0]);
  }
  insert_before(std::move(before), emitted);
}

void keep_inputs_as_they_are(onnx::Model& model) {
  const graph::Index index(model);
  auto& nodes = model.graph.nodes;
  std::set<int> vectors;  // initializers without axes that become vectors
  for (const auto& node : nodes) {
    if (!graph::is_matrix_product(node) || has_pair_of_8_bits(model, index, node.inputs()[0])) continue;
    const int producer = index.producer(node.inputs()[graph::kWeightInput]);
    if (producer == graph::kNone || !graph::is_dequantize_linear(node_at(model, producer))) continue;
    auto& dequantizer = nodes[static_cast<std::size_t>(producer)];
    const auto* matrix = constant(model, index, dequantizer, 0);
    const auto* scale = constant(model, index, dequantizer, 1);
    if (matrix == nullptr || scale == nullptr || matrix->dims.size() != 2 || dequantizer.int_or("block_size", 0) != 0)
      continue;
    if (scale->dims.empty()) {
      for (std::size_t i = 1; i < dequantizer.inputs().size(); ++i)
        vectors.insert(index.initializer(dequantizer.inputs()[i]));
    } else if (const auto axis = dequantizer.int_or("axis", 1); axis > 0) {
      dequantizer.set_attribute(onnx::Attribute::of_int("axis", axis - 2));
    }
  }
  vectors.erase(graph::kNone);
  for (const int tensor : vectors) model.graph.initializers[static_cast<std::size_t>(tensor)].dims = {1};
}

void insert_before(std::multimap<int, Node> before, Emitted& emitted) {
  if (before.empty()) return;
  auto& quantized = emitted.model;
  std::vector<Node> nodes;
  std::vector<std::size_t> moved_to;
  for (std::size_t n = 0; n < quantized.graph.nodes.size(); ++n) {
    auto& node = quantized.graph.nodes[n];
    const auto [first, last] = before.equal_range(static_cast<int>(n));
    for (auto found = first; found != last; ++found) {
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (node.inputs()[i] == found->second.inputs()[0]) node.set_input(i, found->second.outputs()[0]);
      }
      nodes.push_back(std::move(found->second));
    }
    moved_to.push_back(nodes.size());
    nodes.push_back(std::move(node));
  }
  quantized.graph.nodes = std::move(nodes);
  for (auto& place : emitted.provenance.nodes) {
    if (place) place = moved_to[*place];
  }
}

}  // namespace detent::quantization
