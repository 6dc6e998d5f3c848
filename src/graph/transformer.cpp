#include "graph/transformer.h"

#include <algorithm>
#include <deque>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "graph/traits.h"

namespace detent::graph {
namespace {

using onnx::Node;

// A product by a constant matrix.
struct Product {
  std::size_t node = 0;
  std::string weight;  // the initializer
  std::int64_t rows = 0, columns = 0;
};

constexpr std::size_t kMostSteps = 48;  // of a search from a value to the next product

bool is_attention(const Node& node) {
  static const std::set<std::string_view> kTypes{
      "GroupQueryAttention", "MultiHeadAttention", "Attention",       "DecoderMaskedMultiHeadAttention",
      "PackedAttention",     "QAttention",         "SparseAttention", "PagedAttention"};
  return kTypes.contains(node.op_type());
}

// Empty where a node lacks it: models come from strangers.
const std::string& input(const Node& node, std::size_t n) {
  static const std::string kNothing;
  return n < node.inputs().size() ? node.inputs()[n] : kNothing;
}
const std::string& output(const Node& node) {
  static const std::string kNothing;
  return node.outputs().empty() ? kNothing : node.outputs().front();
}

bool is_experts(const Node& node) { return node.op_type() == "MoE" || node.op_type() == "QMoE"; }

bool is_norm(const Node& node) {
  return node.op_type().find("LayerNorm") != std::string::npos || node.op_type() == "RMSNormalization";
}

class Finder {
 public:
  Finder(const onnx::Model& model, const ValueTypes& types)
      : model_(model), types_(types), index_(model), products_(model.graph.nodes.size()) {
    for (std::size_t n = 0; n < products_.size(); ++n) products_[n] = product_of(n);
  }

  std::optional<Transformer> run() {
    for (std::size_t n = 0; n < products_.size(); ++n) {
      const auto& node = model_.graph.nodes[n];
      if (is_attention(node)) add_attention(n);
      if (node.op_type() == "Softmax") add_plain_attention(n);
      if (is_experts(node)) add_experts(n);
      if (products_[n]) add_mlp(*products_[n]);
    }
    if (found_.layers.empty()) return std::nullopt;
    find_ends();
    return std::move(found_);
  }

 private:
  const Node& node(int n) const { return model_.graph.nodes[static_cast<std::size_t>(n)]; }

  // The constant behind a value: itself, or what is dequantized, transposed or reshaped to it.
  const onnx::Tensor* constant(const std::string& value) const {
    std::string name = value;
    for (int step = 0; step < 4; ++step) {
      if (const int at = index_.initializer(name); at != kNone)
        return &model_.graph.initializers[static_cast<std::size_t>(at)];
      const int maker = index_.producer(name);
      if (maker == kNone) return nullptr;
      const auto& type = node(maker).op_type();
      if (type != "DequantizeLinear" && type != "Transpose" && type != "Reshape" && type != "Cast") return nullptr;
      name = input(node(maker), 0);
    }
    return nullptr;
  }

  bool is_transposed(const std::string& value) const {
    const int maker = index_.producer(value);
    if (maker == kNone) return false;
    if (node(maker).op_type() == "Transpose") return true;
    return is_dequantize_linear(node(maker)) && is_transposed(input(node(maker), 0));
  }

  std::optional<Product> product_of(std::size_t n) const {
    const auto& made = model_.graph.nodes[n];
    const auto& type = made.op_type();
    const auto& inputs = made.inputs();
    if (type == "MatMulNBits" || type == "MatMulBnb4") {
      const auto* weight = inputs.size() > 1 ? constant(inputs[1]) : nullptr;
      if (weight == nullptr) return std::nullopt;
      return Product{n, weight->name, made.int_or("K", 0), made.int_or("N", 0)};
    }
    static const std::set<std::string_view> kSecond{
        "MatMul", "Gemm", "MatMulInteger", "FusedMatMul", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"};
    static const std::set<std::string_view> kFourth{"QLinearMatMul", "QGemm"};
    const std::size_t at = kSecond.contains(type) ? 1 : kFourth.contains(type) ? 3 : 0;
    if (at == 0 || inputs.size() <= at) return std::nullopt;
    const auto* weight = constant(inputs[at]);
    if (weight == nullptr || weight->dims.size() != 2) return std::nullopt;
    auto rows = weight->dims[0], columns = weight->dims[1];
    const bool turns = made.int_or("transB", 0) != 0;
    if (turns != is_transposed(inputs[at])) std::swap(rows, columns);
    if (rows < 2 || columns < 2) return std::nullopt;
    return Product{n, weight->name, rows, columns};
  }

  // Where a search goes no further: what adds up layers, and other layers.
  bool is_border(const Node& made) const {
    if (is_norm(made) && made.inputs().size() > 2) return true;  // of a sum, or with a bias: not of single heads
    if (is_attention(made) || is_experts(made)) return true;
    if (made.op_type() != "Add") return false;
    return index_.initializer(input(made, 0)) == kNone && index_.initializer(input(made, 1)) == kNone &&
           is_residual(made);
  }

  // A sum whose result is read by a norm, or once more.
  bool is_residual(const Node& sum) const {
    const auto readers = index_.consumers(output(sum));
    return std::any_of(readers.begin(), readers.end(), [&](int reader) {
      const auto& type = node(reader).op_type();
      return is_norm(node(reader)) || type == "Pow" || type == "ReduceMean";
    });
  }

  // The product by a constant that a value comes from, with the fewest steps between.
  const Product* source(const std::string& value) const {
    std::deque<std::string> next{value};
    std::set<std::string> seen{value};
    for (std::size_t steps = 0; !next.empty() && steps < kMostSteps; ++steps) {
      const int maker = index_.producer(next.front());
      next.pop_front();
      if (maker == kNone) continue;
      if (const auto& product = products_[static_cast<std::size_t>(maker)]) return &*product;
      if (is_border(node(maker)) || node(maker).op_type() == "Softmax") continue;
      for (const auto& input : node(maker).inputs()) {
        if (!input.empty() && seen.insert(input).second) next.push_back(input);
      }
    }
    return nullptr;
  }

  // The first product that reads what comes of a value.
  const Product* sink(const std::string& value) const {
    std::deque<std::string> next{value};
    std::set<std::string> seen{value};
    for (std::size_t steps = 0; !next.empty() && steps < kMostSteps; ++steps) {
      const auto readers = index_.consumers(next.front());
      next.pop_front();
      for (const int reader : readers) {
        if (const auto& product = products_[static_cast<std::size_t>(reader)]) return &*product;
        if (is_border(node(reader)) || is_norm(node(reader)) || is_residual_sum(reader)) continue;
        for (const auto& output : node(reader).outputs()) {
          if (!output.empty() && seen.insert(output).second) next.push_back(output);
        }
      }
    }
    return nullptr;
  }

  bool is_residual_sum(int n) const { return node(n).op_type() == "Add" && is_residual(node(n)); }

  // Of all constants of a node, with those that are dequantized for it.
  std::uint64_t bytes_of(std::size_t n) const {
    std::uint64_t bytes = 0;
    for (const auto& input : model_.graph.nodes[n].inputs()) {
      if (input.empty()) continue;
      if (const int at = index_.initializer(input); at != kNone) {
        bytes += model_.graph.initializers[static_cast<std::size_t>(at)].data.size();
      } else if (const int maker = index_.producer(input); maker != kNone && constant(input) != nullptr) {
        bytes += bytes_of(static_cast<std::size_t>(maker));
      }
    }
    return bytes;
  }

  void add_input(TransformerLayer& layer, const Product* product, std::vector<const Product*>& inputs) const {
    if (product == nullptr || std::find(inputs.begin(), inputs.end(), product) != inputs.end()) return;
    inputs.push_back(product);
    layer.inputs.push_back(model_.graph.nodes[product->node].id());
    layer.attention_bytes += bytes_of(product->node);
  }

  void finish_attention(TransformerLayer layer, const std::string& result) {
    if (const auto* output = sink(result)) {
      layer.output = model_.graph.nodes[output->node].id();
      layer.attention_bytes += bytes_of(output->node);
      if (found_.hidden == 0) found_.hidden = output->columns;
    }
    found_.layers.push_back(std::move(layer));
  }

  // One operator for all of it.
  void add_attention(std::size_t n) {
    const auto& made = model_.graph.nodes[n];
    TransformerLayer layer;
    layer.attention = made.id();
    layer.kind = made.op_type();
    layer.heads = made.int_or("num_heads", made.int_or("q_num_heads", 0));
    layer.kv_heads = made.int_or("kv_num_heads", layer.heads);
    std::vector<const Product*> inputs;
    const bool has_weights = made.domain() == "com.microsoft" && made.op_type().ends_with("Attention") &&
                             (made.op_type() == "Attention" || made.op_type() == "QAttention");
    if (has_weights) {
      const auto* weight = constant(input(made, 1));
      if (weight != nullptr && weight->dims.size() == 2 && layer.heads > 0)
        layer.head_size = weight->dims[1] / 3 / layer.heads;
      layer.inputs.push_back(made.id());
      layer.attention_bytes += bytes_of(n);
    } else {
      for (std::size_t i = 0; i < 3 && i < made.inputs().size(); ++i) {
        if (!made.inputs()[i].empty()) add_input(layer, source(made.inputs()[i]), inputs);
      }
    }
    if (!inputs.empty() && layer.heads > 0) {
      const bool fused = inputs.size() == 1;
      layer.head_size = inputs.front()->columns / (fused ? layer.heads + 2 * layer.kv_heads : layer.heads);
    }
    finish_attention(std::move(layer), output(made));
  }

  // The product of two activations that makes a value, through what scales and masks it.
  const Node* activation_product_before(const std::string& value) const {
    std::string name = value;
    for (int step = 0; step < 8; ++step) {
      const int maker = index_.producer(name);
      if (maker == kNone) return nullptr;
      const auto& made = node(maker);
      if (made.op_type() == "MatMul" || made.op_type() == "FusedMatMul")
        return products_[static_cast<std::size_t>(maker)] ? nullptr : &made;
      static const std::set<std::string_view> kSteps{
          "Add", "Mul", "Div", "Where", "Cast", "QuantizeLinear", "DequantizeLinear", "Clip"};
      if (!kSteps.contains(made.op_type())) return nullptr;
      const std::size_t at = made.op_type() == "Where" ? 1 : 0;
      name = input(made, at);
      if (index_.initializer(name) != kNone) name = input(made, at + 1);
    }
    return nullptr;
  }

  // The product of two activations that reads a value.
  const Node* activation_product_behind(const std::string& value) const {
    std::string name = value;
    for (int step = 0; step < 5; ++step) {
      const auto readers = index_.consumers(name);
      if (readers.size() != 1) return nullptr;
      const auto& reader = node(readers.front());
      if (reader.op_type() == "MatMul") return &reader;
      static const std::set<std::string_view> kSteps{"Cast", "Dropout", "QuantizeLinear", "DequantizeLinear", "Where"};
      if (!kSteps.contains(reader.op_type())) return nullptr;
      name = output(reader);
    }
    return nullptr;
  }

  // The heads of queries and their size, by their type or by the Reshape that they come from; 0: not known.
  std::pair<std::int64_t, std::int64_t> heads_of(const std::string& queries) const {
    const auto type = types_.find(queries);
    if (type != types_.end() && type->second.shape && type->second.shape->size() == 4) {
      const auto& shape = *type->second.shape;
      if (shape[1].is_static() && shape[3].is_static()) return {shape[1].value, shape[3].value};
    }
    std::string name = queries;
    for (int step = 0; step < 12; ++step) {
      const int maker = index_.producer(name);
      if (maker == kNone) break;
      const auto& made = node(maker);
      const auto* shape = made.op_type() == "Reshape" ? constant(input(made, 1)) : nullptr;
      if (shape != nullptr && shape->count() == 4) {
        const auto dims = onnx::to_int64s(*shape);
        if (dims[2] > 0 && dims[3] > 0) return {dims[2], dims[3]};
      }
      if (products_[static_cast<std::size_t>(maker)]) break;
      name = input(made, 0);
    }
    return {0, 0};
  }

  // Written out: the Softmax of queries by keys, by values.
  void add_plain_attention(std::size_t n) {
    const auto& softmax = model_.graph.nodes[n];
    const auto* scores = activation_product_before(input(softmax, 0));
    const auto* mixed = activation_product_behind(output(softmax));
    if (scores == nullptr || mixed == nullptr) return;
    TransformerLayer layer;
    layer.attention = softmax.id();
    layer.kind = softmax.op_type();
    std::vector<const Product*> inputs;
    for (const auto& value : {input(*scores, 0), input(*scores, 1), input(*mixed, 1)})
      add_input(layer, source(value), inputs);
    if (inputs.empty()) return;
    std::tie(layer.heads, layer.head_size) = heads_of(input(*scores, 0));
    if (layer.heads > 0 && layer.head_size > 0) {
      const auto size = layer.head_size;
      layer.kv_heads = inputs.size() > 1 ? inputs[1]->columns / size : (inputs[0]->columns / size - layer.heads) / 2;
    }
    finish_attention(std::move(layer), output(*mixed));
  }

  // Through what hands values on as they are.
  const Node* maker_of(const std::string& value) const {
    std::string name = value;
    for (int step = 0; step < 5; ++step) {
      const int maker = index_.producer(name);
      if (maker == kNone) return nullptr;
      static const std::set<std::string_view> kSteps{
          "Cast", "Reshape", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Identity"};
      if (!kSteps.contains(node(maker).op_type()) && !scales_rows(node(maker))) return &node(maker);
      name = input(node(maker), 0);
    }
    return nullptr;
  }

  // Whether it divides rows by their largest magnitudes, as products with dynamic scales read them.
  bool scales_rows(const Node& made) const {
    const int divisor = made.is("Div") ? index_.producer(input(made, 1)) : kNone;
    const int largest = divisor != kNone && node(divisor).is("Max") ? index_.producer(input(node(divisor), 0)) : kNone;
    return largest != kNone && node(largest).is("ReduceMax");
  }

  static bool is_activation(const Node& made) {
    static const std::set<std::string_view> kTypes{"Gelu", "FastGelu", "QuickGelu", "BiasGelu", "Relu",
                                                   "Elu",  "Swish",    "Silu",      "Sigmoid",  "Tanh",
                                                   "Mul",  "SwiGLU",   "LeakyRelu"};
    return kTypes.contains(made.op_type());
  }

  // Whether the product closes an MLP of the layer before it: what it reads are values of wider products.
  void add_mlp(const Product& down) {
    if (found_.layers.empty() || !found_.layers.back().mlp.empty()) return;
    const auto* maker = maker_of(input(model_.graph.nodes[down.node], 0));
    if (maker == nullptr || !is_activation(*maker)) return;
    std::vector<const Product*> makers;
    for (const auto& input : maker->inputs()) {
      const auto* product = input.empty() ? nullptr : source(input);
      if (product != nullptr && std::find(makers.begin(), makers.end(), product) == makers.end())
        makers.push_back(product);
    }
    if (makers.empty() || makers.size() > 2) return;
    const bool gated = makers.size() == 2, fused = !gated && makers[0]->columns == 2 * down.rows;
    if (!fused && std::any_of(makers.begin(), makers.end(), [&](const auto* m) { return m->columns != down.rows; }))
      return;
    auto& layer = found_.layers.back();
    layer.mlp = gated ? "gated" : fused ? "gated, fused" : "plain";
    layer.inner = down.rows;
    makers.push_back(&down);
    for (const auto* product : makers) {
      layer.mlp_nodes.push_back(model_.graph.nodes[product->node].id());
      layer.mlp_bytes += bytes_of(product->node);
    }
  }

  // One operator for all of them.
  void add_experts(std::size_t n) {
    if (found_.layers.empty()) return;
    const auto& made = model_.graph.nodes[n];
    auto& layer = found_.layers.back();
    layer.mlp = "experts";
    layer.mlp_nodes = {made.id()};
    layer.mlp_bytes = bytes_of(n);
    // Weights of the second products: [experts, values, inner], or [experts, hidden, inner / values in a byte].
    const bool packed = made.op_type() == "QMoE";
    const std::size_t second = packed ? 5 : 4;
    const auto* weight = made.inputs().size() > second ? constant(made.inputs()[second]) : nullptr;
    if (weight == nullptr || weight->dims.size() != 3) return;
    layer.experts = weight->dims[0];
    if (packed) {
      layer.inner = weight->dims[2] * 8 / made.int_or("expert_weight_bits", 4);
    } else {
      layer.inner = found_.hidden > 0 && weight->dims[1] == found_.hidden ? weight->dims[2] : weight->dims[1];
    }
  }

  void find_ends() {
    for (std::size_t n = 0; n < products_.size() && !found_.embedding; ++n) {
      const auto& made = model_.graph.nodes[n];
      const bool packed = made.op_type() == "GatherBlockQuantized";
      if (!packed && made.op_type() != "Gather") continue;
      const auto* table = constant(input(made, 0));
      // One that a product reads as well has the product's shape.
      const bool is_table = table != nullptr && (table->dims.size() == 2 || (packed && table->dims.size() == 3));
      if (!is_table || !reads_ids(input(made, 1))) continue;
      const auto width = found_.hidden > 0 ? found_.hidden : table->dims[1];
      found_.embedding = {made.id(), table->name, table->dims[0], packed ? width : table->dims[1], bytes_of(n)};
    }
    for (const auto& output : model_.graph.outputs) {
      const auto* last = source(output.name);
      const auto name = last != nullptr ? model_.graph.nodes[last->node].id() : std::string();
      if (last == nullptr || is_inside(name) || last->columns < found_.hidden) continue;
      if (found_.embedding && last->columns != found_.embedding->entries) continue;
      found_.head = {name, last->weight, last->columns, last->rows, bytes_of(last->node)};
      break;
    }
    found_.is_tied = found_.embedding && found_.head && found_.embedding->weight == found_.head->weight;
  }

  bool is_inside(const std::string& name) const {
    return std::any_of(found_.layers.begin(), found_.layers.end(), [&](const auto& layer) {
      const auto has = [&](const auto& names) { return std::find(names.begin(), names.end(), name) != names.end(); };
      return has(layer.inputs) || has(layer.mlp_nodes) || layer.output == name;
    });
  }

  // Whether these are indices that the graph is given.
  bool reads_ids(const std::string& value) const {
    const auto* maker = maker_of(value);
    return index_.is_input(value) || maker == nullptr;
  }

  const onnx::Model& model_;
  const ValueTypes& types_;
  Index index_;
  std::vector<std::optional<Product>> products_;  // by node
  Transformer found_;
};

}  // namespace

std::optional<Transformer> find_transformer(const onnx::Model& model, const ValueTypes& types) {
  return Finder(model, types).run();
}

std::optional<Transformer> find_transformer(onnx::Model model, const UnfoldLimits& limits) {
  unfold(model, limits);
  lift_constants(model);
  sort_topologically(model);
  return find_transformer(model, ValueTypes());
}

}  // namespace detent::graph
