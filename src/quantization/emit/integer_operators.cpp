#include "quantization/emit/integer_operators.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/constants.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "onnx/write.h"

namespace detent::quantization {
namespace {

using onnx::Node;

// What ends at 0 and 1 in integers of 8 bits.
struct Saturating {
  int node, quantize;
  float scale;  // of the gate
  float alpha, beta;
};

const Node& node_at(const onnx::Model& model, int position) {
  return model.graph.nodes[static_cast<std::size_t>(position)];
}

const onnx::Tensor& tensor_of(const onnx::Model& model, const graph::Index& index, const std::string& name) {
  return model.graph.initializers.at(static_cast<std::size_t>(index.initializer(name)));
}

std::optional<Saturating> saturating(const onnx::Model& model, const graph::Index& index, int position) {
  const auto& node = node_at(model, position);
  if (!node.is("HardSigmoid")) return std::nullopt;
  const int before = index.producer(node.inputs().front());
  const int after = graph::only_reader(index, node.outputs().front());
  if (before == graph::kNone || !graph::is_dequantize_linear(node_at(model, before)) || after == graph::kNone ||
      !graph::is_quantize_linear(node_at(model, after)))
    return std::nullopt;
  const auto& parameters = node_at(model, after).inputs();
  const auto& zero_point = tensor_of(model, index, parameters[2]);
  const bool is_signed = zero_point.type == onnx::DataType::int8;
  if (!is_signed && zero_point.type != onnx::DataType::uint8) return std::nullopt;
  if (onnx::to_int64s(zero_point).front() != (is_signed ? -128 : 0)) return std::nullopt;
  const float scale = graph::floats_of(tensor_of(model, index, parameters[1])).front();
  const Saturating found{position, after, scale, node.float_or("alpha", 0.2F), node.float_or("beta", 0.5F)};
  const bool ends_at_one = std::abs(255 * scale - 1) < 1e-5F;
  return ends_at_one && found.alpha > 0 && found.beta > 0 ? std::make_optional(found) : std::nullopt;
}

class Emitter {
 public:
  explicit Emitter(Emitted& emitted) : emitted_(emitted), model_(emitted.model), index_(model_) {}

  void run() {
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      if (const auto found = saturating(model_, index_, static_cast<int>(n))) make_sum(*found);
    }
    if (constants_.empty()) return;
    const std::size_t added = constants_.size();
    for (auto& node : model_.graph.nodes) constants_.push_back(std::move(node));
    model_.graph.nodes = std::move(constants_);
    for (auto& place : emitted_.provenance.nodes) {
      if (place) place = *place + added;
    }
  }

 private:
  std::string add_scale(const std::string& wanted, float scale) {
    const auto name = index_.fresh_name(wanted);
    const float values[] = {scale};
    model_.graph.initializers.push_back(onnx::make_tensor<float>(name, onnx::DataType::float32, {}, values));
    return name;
  }

  void make_sum(const Saturating& gate) {
    auto& node = model_.graph.nodes[static_cast<std::size_t>(gate.node)];
    auto& quantize = model_.graph.nodes[static_cast<std::size_t>(gate.quantize)];
    const std::string name = node.outputs().front(), zero_point = quantize.inputs()[2];
    const std::string summand = index_.fresh_name(name + "_summand"),
                      stored = index_.fresh_name(summand + "_quantized");
    const auto type = tensor_of(model_, index_, zero_point).type;
    const std::byte largest{type == onnx::DataType::int8 ? std::uint8_t{127} : std::uint8_t{255}};
    model_.graph.initializers.push_back({stored, type, {}, onnx::TensorData::owned({largest}), {}, false});
    constants_.emplace_back(
        "DequantizeLinear", index_.fresh_name(summand + "_DequantizeLinear"),
        std::vector{stored, add_scale(summand + "_scale", gate.beta / gate.alpha / 255), zero_point},
        std::vector{summand});
    quantize.set_input(1, add_scale(name + "_sum_scale", gate.scale / gate.alpha));
    node = Node("Add", node.name(), {node.inputs().front(), summand}, node.outputs());
  }

  Emitted& emitted_;
  onnx::Model& model_;
  graph::Index index_;
  std::vector<Node> constants_;  // dequantized before all others
};

const Node* producer_of(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int producer = index.producer(value);
  return producer == graph::kNone ? nullptr : &model.graph.nodes[static_cast<std::size_t>(producer)];
}

bool multiplies_integers(const onnx::Model& model, const graph::Index& index, const Node& node) {
  if (!graph::is_matrix_product(node)) return false;
  return std::all_of(node.inputs().begin(), node.inputs().begin() + 2, [&](const auto& input) {
    const auto* producer = producer_of(model, index, input);
    return producer != nullptr && graph::is_dequantize_linear(*producer);
  });
}

// Where only a QuantizeLinear reads a value, or only those outside of the graph, the runtime has a kernel.
bool is_read_in_float(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const auto readers = index.consumers(value);
  return std::any_of(readers.begin(), readers.end(), [&](int reader) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
    return !graph::is_quantize_linear(node) && node.bodies().empty();
  });
}

bool is_bias(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const auto* maker = producer_of(model, index, value);
  if (maker == nullptr) return index.initializer(value) != graph::kNone;
  return graph::is_dequantize_linear(*maker) && index.initializer(maker->inputs()[0]) != graph::kNone;
}

// Of two matrices, for which it has a kernel where what is added is a bias, or of more axes, with Reshapes: that has
// one only where a QuantizeLinear reads the sum, and not a faster one.
bool makes_gemm(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                const std::string& product, const std::string& added) {
  if (graph::rank_of(types, product) == 2) return !is_bias(model, index, added);
  return graph::static_shape(types, product) && graph::rank_of(types, added) == 1;
}

// What an Add reads of products that it makes a Gemm with, for this reader alone.
std::set<std::string> fused_inputs(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                                   const Node& add) {
  std::set<std::string> fused;
  if (!add.is("Add")) return fused;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& value = add.inputs()[i];
    const auto* maker = producer_of(model, index, value);
    if (maker != nullptr && maker->is("MatMul") && multiplies_integers(model, index, *maker) &&
        index.consumers(value).size() == 1 && !index.is_output(value) &&
        makes_gemm(model, index, types, value, add.inputs()[1 - i]))
      fused.insert(value);
  }
  return fused;
}

Node barrier_before(const Node& node, const std::string& value, graph::Index& index) {
  Node barrier("Max", index.fresh_name(value + "_Barrier"), {value}, {index.fresh_name(value + "_in_float")});
  barrier.set_body(node.body());
  return barrier;
}

}  // namespace

void emit_hard_sigmoids(Emitted& emitted) { Emitter(emitted).run(); }

void keep_integer_products(Emitted& emitted, const graph::ValueTypes& types) {
  auto& model = emitted.model;
  graph::Index index(model);
  std::multimap<int, Node> before;
  std::string zero;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    auto& node = model.graph.nodes[n];
    for (const auto& value : fused_inputs(model, index, types, node))
      before.emplace(static_cast<int>(n), barrier_before(node, value, index));
    if (!graph::has_trait(node, graph::Trait::clips)) continue;
    const std::string product = node.inputs()[0];
    const auto* maker = producer_of(model, index, product);
    if (maker == nullptr || !multiplies_integers(model, index, *maker) ||
        !is_read_in_float(model, index, node.outputs()[0]))
      continue;
    if (node.is("Clip")) {
      before.emplace(static_cast<int>(n), barrier_before(node, product, index));
      continue;
    }
    if (zero.empty()) {
      zero = index.fresh_name("zero");
      model.graph.initializers.push_back(
          onnx::make_tensor<float>(zero, onnx::DataType::float32, {}, std::vector{0.0F}));
    }
    node.set_op_type("Max");
    node.set_inputs({product, zero});
  }
  insert_before(std::move(before), emitted);
}

namespace {

using onnx::DataType;

constexpr std::int64_t kStepsOfStep = 256;  // a power of two, so that the scale stays exact

bool has_8_bits(DataType type) { return type == DataType::uint8 || type == DataType::int8; }
bool has_16_bits(DataType type) { return type == DataType::uint16 || type == DataType::int16; }

class Widening {
 public:
  Widening(Emitted& emitted, const graph::ValueTypes& types, bool htp)
      : emitted_(emitted), model_(emitted.model), index_(model_), types_(types), htp_(htp) {}

  void run() {
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      const auto& type = model_.graph.nodes[n].op_type();
      if (type != "QuantizeLinear" && type != "DequantizeLinear") widen(n);
    }
    if (!before_.empty()) insert();
  }

 private:
  const Node& at(int n) const { return model_.graph.nodes[static_cast<std::size_t>(n)]; }

  // The DequantizeLinear of a value that changes with the input, or kNone.
  int activation(const std::string& value) const {
    const int maker = index_.producer(value);
    const bool is_pair = maker != graph::kNone && graph::is_dequantize_linear(at(maker));
    return is_pair && index_.initializer(at(maker).inputs()[0]) == graph::kNone ? maker : graph::kNone;
  }

  // The DequantizeLinear of an operand of 8 bits that is constant, or kNone. Weights of products and parameters of
  // norms have 8 bits beside 16.
  int narrow_constant(const Node& node, const std::string& value) const {
    if (graph::is_product(node) || graph::has_trait(node, graph::Trait::normalization) || value.empty())
      return graph::kNone;
    const int maker = index_.producer(value);
    if (maker == graph::kNone || !graph::is_dequantize_linear(at(maker)) || at(maker).inputs().size() < 3)
      return graph::kNone;
    const int stored = index_.initializer(at(maker).inputs()[0]);
    return stored != graph::kNone && has_8_bits(model_.graph.initializers[static_cast<std::size_t>(stored)].type)
               ? maker
               : graph::kNone;
  }

  // The QuantizeLinear that an operator's results go to, through what clips them, or kNone.
  int quantizer_behind(int n) const {
    while (n != graph::kNone && !at(n).outputs().empty()) {
      n = graph::only_reader(index_, at(n).outputs()[0]);
      if (n != graph::kNone && graph::is_quantize_linear(at(n))) return n;
      if (n != graph::kNone && !graph::has_trait(at(n), graph::Trait::clips)) return graph::kNone;
    }
    return graph::kNone;
  }

  const onnx::Tensor& tensor(const std::string& name) const {
    return model_.graph.initializers[static_cast<std::size_t>(index_.initializer(name))];
  }
  DataType type_of(int pair) const { return tensor(at(pair).inputs()[2]).type; }

  void widen(std::size_t n) {
    const int quantizer = quantizer_behind(static_cast<int>(n));
    std::vector<int> pairs;
    for (const auto& value : model_.graph.nodes[n].inputs()) {
      if (const int found = value.empty() ? graph::kNone : activation(value); found != graph::kNone)
        pairs.push_back(found);
    }
    const bool is_norm = htp_ && at(static_cast<int>(n)).is("LayerNormalization");
    const bool is_wide = is_norm || (quantizer != graph::kNone && has_16_bits(type_of(quantizer))) ||
                         std::any_of(pairs.begin(), pairs.end(), [&](int p) { return has_16_bits(type_of(p)); });
    if (!is_wide) return;
    if (const int second = htp_ ? centre_second(n) : graph::kNone; second != graph::kNone) std::erase(pairs, second);
    const bool is_mixed = (quantizer != graph::kNone && has_8_bits(type_of(quantizer))) ||
                          std::any_of(pairs.begin(), pairs.end(), [&](int p) { return has_8_bits(type_of(p)); });
    // Widened so, a HardSigmoid gives other numbers in the simulator of the HTP.
    const bool narrows = is_mixed && model_.graph.nodes[n].is("HardSigmoid");
    const auto differs = [&](int pair) { return narrows ? has_16_bits(type_of(pair)) : has_8_bits(type_of(pair)); };
    for (const int pair : pairs) {
      if (differs(pair)) change_input(n, pair);
    }
    if (quantizer != graph::kNone && differs(quantizer)) change_output(quantizer);
    if (!narrows) widen_constants(n);
    if (htp_) centre_tanhs(n);
    if (htp_) centre_normalized(n);
  }

  void widen_constants(std::size_t n) {
    for (std::size_t i = 0; i < at(static_cast<int>(n)).inputs().size(); ++i) {
      const std::string value = at(static_cast<int>(n)).inputs()[i];
      const int pair = narrow_constant(at(static_cast<int>(n)), value);
      if (pair == graph::kNone) continue;
      auto [wide, added] = wide_.try_emplace(value);
      if (added) wide->second = add_constant(at(pair), value, before_[n]);
      replaced_.insert(pair);
      model_.graph.nodes[n].set_input(i, wide->second);
    }
  }

  // What quantizing makes of a constant is made when it is written.
  static onnx::Tensor in_memory(const onnx::Tensor& tensor) {
    std::vector<std::byte> bytes;
    tensor.data.write_to(
        [&](std::span<const std::byte> piece) { bytes.insert(bytes.end(), piece.begin(), piece.end()); });
    return {tensor.name, tensor.type, tensor.dims, onnx::TensorData::owned(std::move(bytes)), {}, false};
  }

  // The same numbers in 16 bits.
  std::string add_constant(const Node& pair, const std::string& name, std::vector<Node>& place) {
    std::vector<std::string> inputs;
    for (std::size_t i = 0; i < 3; ++i) {
      const auto& given = tensor(pair.inputs()[i]);
      inputs.push_back(index_.fresh_name(given.name + "_wide"));
      if (i == 1) {
        auto scales = graph::floats_of(given);
        for (float& scale : scales) scale /= kStepsOfStep;
        added_.push_back(onnx::make_tensor<float>(inputs[i], DataType::float32, given.dims, scales));
        continue;
      }
      std::vector<std::int16_t> wide;
      for (const auto number : onnx::to_int64s(in_memory(given)))
        wide.push_back(static_cast<std::int16_t>(number * kStepsOfStep));
      added_.push_back(
          {inputs[i], other_type(given.type), given.dims, onnx::TensorData::of<std::int16_t>(wide), {}, false});
    }
    auto made = index_.fresh_name(name + "_wide");
    place.emplace_back("DequantizeLinear", index_.fresh_name(name + "_wide_DequantizeLinear"), std::move(inputs),
                       std::vector{made}, pair.attributes(), pair.domain());
    return made;
  }

  // The second operand of a product of two activations; returns its pair, or kNone where it stays.
  int centre_second(std::size_t n) {
    const auto& node = at(static_cast<int>(n));
    if (!node.is("MatMul") || node.inputs()[0] == node.inputs()[1]) return graph::kNone;
    const std::string value = node.inputs()[1];
    const int pair = activation(value);
    if (pair == graph::kNone || activation(node.inputs()[0]) == graph::kNone || type_of(pair) == DataType::int16)
      return graph::kNone;
    centre(n, 1, pair);
    return pair;
  }

  // Behind a Tanh that makes uint16 the HTP multiplies wrongly, for tensors of some shapes.
  void centre_tanhs(std::size_t n) {
    if (!at(static_cast<int>(n)).is("Mul")) return;
    for (std::size_t i = 0; i < at(static_cast<int>(n)).inputs().size(); ++i) {
      const int pair = activation(at(static_cast<int>(n)).inputs()[i]);
      if (pair == graph::kNone || type_of(pair) != DataType::uint16) continue;
      const int quantizer = index_.producer(at(pair).inputs()[0]);
      const int maker = quantizer == graph::kNone ? graph::kNone : index_.producer(at(quantizer).inputs()[0]);
      if (maker != graph::kNone && at(maker).is("Tanh")) centre(n, i, pair);
    }
  }

  // Of 16 rows that a LayerNormalization makes in uint16 the HTP makes a wrong product, with constant weights.
  void centre_normalized(std::size_t n) {
    constexpr std::int64_t kRows = 16;
    if (!graph::is_matrix_product(at(static_cast<int>(n)))) return;
    const int pair = activation(at(static_cast<int>(n)).inputs()[0]);
    if (pair == graph::kNone || type_of(pair) != DataType::uint16) return;
    int from = pair, maker = graph::kNone;
    while (from != graph::kNone) {
      const int quantizer = index_.producer(at(from).inputs()[0]);
      maker = quantizer == graph::kNone ? graph::kNone : index_.producer(at(quantizer).inputs()[0]);
      const bool renames = maker != graph::kNone && graph::has_trait(at(maker), graph::Trait::renames);
      from = renames ? activation(at(maker).inputs()[0]) : graph::kNone;
    }
    if (maker == graph::kNone || !at(maker).is("LayerNormalization")) return;
    const auto dims = graph::static_shape(types_, at(maker).outputs()[0]);
    if (!dims || dims->empty()) return;
    const auto rows = std::accumulate(dims->begin(), dims->end() - 1, std::int64_t{1}, std::multiplies<>());
    if (rows == kRows) multiply_by_one(n, pair);
  }

  // A Mul by 1 in front of the node, with the pair's grid behind it as well.
  void multiply_by_one(std::size_t n, int pair) {
    const auto& given = at(pair);
    const std::string value = given.outputs()[0];
    const auto named = [&](const char* end) { return index_.fresh_name(value + end); };
    const auto one = named("_one"), one_scale = named("_one_scale"), zero = named("_one_zero_point"),
               factor = named("_factor"), product = named("_product"),
               integers = named("_product_QuantizeLinear_Output"), made = named("_product_DequantizeLinear_Output");
    const float scale[] = {1.0F / 65535};
    const std::int16_t full[] = {-1}, none[] = {0};  // 65535 and 0 without a sign
    added_.push_back(onnx::make_tensor<float>(one_scale, DataType::float32, {}, scale));
    added_.push_back({one, DataType::uint16, {}, onnx::TensorData::of<std::int16_t>(full), {}, false});
    added_.push_back({zero, DataType::uint16, {}, onnx::TensorData::of<std::int16_t>(none), {}, false});
    const std::vector<onnx::Attribute> no_attributes;
    auto& place = before_[n];
    place.emplace_back("DequantizeLinear", factor, std::vector{one, one_scale, zero}, std::vector{factor},
                       no_attributes, given.domain());
    place.emplace_back("Mul", product, std::vector{value, factor}, std::vector{product});
    const auto &grid_scale = given.inputs()[1], &grid_zero = given.inputs()[2];
    place.emplace_back("QuantizeLinear", integers, std::vector{product, grid_scale, grid_zero}, std::vector{integers},
                       no_attributes, given.domain());
    place.emplace_back("DequantizeLinear", made, std::vector{integers, grid_scale, grid_zero}, std::vector{made},
                       no_attributes, given.domain());
    model_.graph.nodes[n].set_input(0, made);
  }

  void centre(std::size_t n, std::size_t input, int pair) {
    const std::string value = at(pair).outputs()[0];
    auto [made, added] = centred_.try_emplace(value);
    if (added) made->second = add_pair(copy_of(n, pair), value, at(pair), centred_grid(pair), before_[n]);
    model_.graph.nodes[n].set_input(input, made->second);
    replaced_.insert(pair);
  }

  // The runtime makes one conversion of two pairs that nothing else reads from.
  std::string copy_of(std::size_t n, int pair) {
    const auto& value = at(pair).outputs()[0];
    auto copy = index_.fresh_name(value + "_to_widen");
    before_[n].emplace_back("DequantizeLinear", index_.fresh_name(value + "_DequantizeLinear"), at(pair).inputs(),
                            std::vector{copy}, std::vector<onnx::Attribute>(), at(pair).domain());
    return copy;
  }

  void change_input(std::size_t n, int pair) {
    replaced_.insert(pair);
    const std::string value = at(pair).outputs()[0];
    auto [wide, added] = wide_.try_emplace(value);
    if (added) wide->second = add_pair(copy_of(n, pair), value, at(pair), other_grid(pair), before_[n]);
    for (std::size_t i = 0; i < at(static_cast<int>(n)).inputs().size(); ++i) {
      if (at(static_cast<int>(n)).inputs()[i] == value) model_.graph.nodes[n].set_input(i, wide->second);
    }
  }

  void change_output(int quantizer) {
    auto& node = model_.graph.nodes[static_cast<std::size_t>(quantizer)];
    const std::string value = node.inputs()[0];
    const std::string wide =
        add_pair(value, value, node, other_grid(quantizer), before_[static_cast<std::size_t>(quantizer)]);
    node.set_input(0, wide);
  }

  struct Grid {
    float scale;
    std::int64_t zero_point;
    DataType type;
  };

  Grid grid_of(int pair) const {
    const auto& zero = tensor(at(pair).inputs()[2]);
    return {graph::floats_of(tensor(at(pair).inputs()[1])).front(), onnx::to_int64s(zero).front(), zero.type};
  }

  // The other width: 16 bits on the grid of 8, or 8 bits over the range of 16.
  Grid other_grid(int pair) const {
    const auto [scale, zero_point, from] = grid_of(pair);
    const auto to = other_type(from);
    if (has_8_bits(from)) return {scale / kStepsOfStep, zero_point * kStepsOfStep, to};
    constexpr int kStepsOf16 = 257;  // 65535 / 255
    return {scale * kStepsOf16, std::llround(static_cast<double>(zero_point) / kStepsOf16), to};
  }

  // 16 bits with a sign and the zero point 0: on the grid of 8, or the finest that reaches as far as the 16 do.
  Grid centred_grid(int pair) const {
    const auto [scale, zero_point, from] = grid_of(pair);
    if (has_8_bits(from)) return {scale / (kStepsOfStep / 2), 0, DataType::int16};
    const auto below = static_cast<double>(zero_point) / 32768, above = static_cast<double>(65535 - zero_point) / 32767;
    return {static_cast<float>(scale * std::max({1.0, below, above})), 0, DataType::int16};
  }

  static DataType other_type(DataType from) {
    switch (from) {
      case DataType::uint8: return DataType::uint16;
      case DataType::int8: return DataType::int16;
      case DataType::uint16: return DataType::uint8;
      default: return DataType::int8;
    }
  }

  // A pair of another form around `value`; returns what it makes.
  std::string add_pair(const std::string& value, const std::string& name, const Node& like, const Grid& grid,
                       std::vector<Node>& place) {
    const float scale[] = {grid.scale};
    const std::int16_t stored[] = {static_cast<std::int16_t>(grid.zero_point)};
    const std::int8_t stored_in_8[] = {static_cast<std::int8_t>(grid.zero_point)};
    const auto zeros = has_16_bits(grid.type) ? onnx::TensorData::of<std::int16_t>(stored)
                                              : onnx::TensorData::of<std::int8_t>(stored_in_8);
    const auto scale_name = index_.fresh_name(name + "_wide_scale"),
               zero_name = index_.fresh_name(name + "_wide_zero_point");
    added_.push_back(onnx::make_tensor<float>(scale_name, DataType::float32, {}, scale));
    added_.push_back({zero_name, grid.type, {}, zeros, {}, false});
    const auto integers = index_.fresh_name(name + "_wide"),
               made = index_.fresh_name(name + "_wide_DequantizeLinear_Output");
    place.emplace_back("QuantizeLinear", index_.fresh_name(name + "_wide_QuantizeLinear"),
                       std::vector{value, scale_name, zero_name}, std::vector{integers}, std::vector<onnx::Attribute>(),
                       like.domain());
    place.emplace_back("DequantizeLinear", index_.fresh_name(name + "_wide_DequantizeLinear"),
                       std::vector{integers, scale_name, zero_name}, std::vector{made}, std::vector<onnx::Attribute>(),
                       like.domain());
    return made;
  }

  // Pairs that have another form for all their readers now.
  std::set<int> unread() const {
    std::set<std::string> read;
    for (const auto& node : model_.graph.nodes) read.insert(node.inputs().begin(), node.inputs().end());
    std::set<int> pairs;
    for (const int pair : replaced_) {
      const auto& value = at(pair).outputs()[0];
      if (!read.contains(value) && !index_.is_output(value) && !index_.is_captured(value)) pairs.insert(pair);
    }
    return pairs;
  }

  void insert() {
    const auto left_out = unread();
    std::vector<Node> nodes;
    std::vector<std::size_t> moved_to;
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      for (auto& node : before_[n]) nodes.push_back(std::move(node));
      moved_to.push_back(nodes.size());
      if (!left_out.contains(static_cast<int>(n))) nodes.push_back(std::move(model_.graph.nodes[n]));
    }
    model_.graph.nodes = std::move(nodes);
    for (auto& place : emitted_.provenance.nodes) {
      if (place) place = moved_to[*place];
    }
    for (auto& tensor : added_) model_.graph.initializers.push_back(std::move(tensor));
    if (!left_out.empty()) graph::drop_unused_initializers(model_);
  }

  Emitted& emitted_;
  onnx::Model& model_;
  graph::Index index_;
  const graph::ValueTypes& types_;
  bool htp_;
  std::map<std::string, std::string> wide_;          // by value of 8 bits
  std::set<int> replaced_;                           // pairs that some readers have in another form
  std::map<std::string, std::string> centred_;       // by second operand
  std::map<std::size_t, std::vector<Node>> before_;  // nodes to put before another
  std::vector<onnx::Tensor> added_;
};

}  // namespace

void widen_operators(Emitted& emitted, const graph::ValueTypes& types, bool htp) {
  Widening(emitted, types, htp).run();
}

}  // namespace detent::quantization
