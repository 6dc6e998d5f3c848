#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/constants.h"
#include "graph/index.h"
#include "graph/operators.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "quantization/emit/integer_operators.h"
#include "quantization/weight_operators.h"

namespace detent::quantization {
namespace {

using onnx::Attribute;
using onnx::DataType;
using onnx::Node;

constexpr const char* kMicrosoftDomain = "com.microsoft";

// A value in integers.
struct Integers {
  std::string values, scale, zero_point;
};

using Row = graph::IntegerForm;
using Shape = graph::IntegerInputs;

class Writer : graph::Rewriter {
 public:
  using Rewriter::Rewriter;

  QOperators run() {
    for (std::size_t n = 0; n < removed_.size(); ++n) {
      const Node& node = model_.graph.nodes[n];
      if (graph::is_q_or_dq(node) || !reads_integers(node)) continue;
      ++(rewrite(n) ? found_.nodes : found_.left);
    }
    graph::remove_nodes(model_, removed_);
    drop_unread_dequantizers();
    graph::drop_unused_initializers(model_);
    if (uses_contrib_ && model_.opset(kMicrosoftDomain) == 0) model_.set_opset(kMicrosoftDomain, 1);
    return found_;
  }

 private:
  bool reads_integers(const Node& node) const {
    return std::any_of(node.inputs().begin(), node.inputs().end(), [&](const auto& i) { return read(i).has_value(); });
  }

  const Node* producer(const std::string& value) const {
    const int at = value.empty() ? graph::kNone : index_.producer(value);
    return at == graph::kNone ? nullptr : &node_at(at);
  }

  // What a node of a pair says, with integers of one of these types.
  std::optional<Integers> pair_of(const Node& node, const std::string& values, bool wide) const {
    if (node.inputs().size() < 3 || node.int_or("block_size", 0) != 0) return std::nullopt;
    const auto* zero = constant(node.inputs()[2]);
    if (zero == nullptr) return std::nullopt;
    const bool narrow = zero->type == DataType::int8 || zero->type == DataType::uint8;
    if (wide ? zero->type != DataType::int32 : !narrow) return std::nullopt;
    return Integers{values, node.inputs()[1], node.inputs()[2]};
  }

  // What is behind a DequantizeLinear.
  std::optional<Integers> read(const std::string& value, bool wide = false) const {
    const auto* node = producer(value);
    return node != nullptr && graph::is_dequantize_linear(*node) ? pair_of(*node, node->inputs()[0], wide)
                                                                 : std::nullopt;
  }

  // The QuantizeLinear that is all that reads the value, or kNone.
  int quantizer(const std::string& value) const {
    const int reader = only_reader(value);
    if (reader == graph::kNone) return graph::kNone;
    const auto& node = node_at(reader);
    const bool fits = graph::is_quantize_linear(node) && node.inputs()[0] == value &&
                      pair_of(node, node.outputs()[0], false).has_value();
    return fits ? reader : graph::kNone;
  }

  // A Relu that is all that reads the value, or kNone.
  int relu_behind(const std::string& value) const {
    constexpr std::int64_t kOpsetOfIntegerClip = 12;
    const int reader = only_reader(value);
    const bool fits = reader != graph::kNone && node_at(reader).is("Relu") && model_.opset() >= kOpsetOfIntegerClip;
    return fits ? reader : graph::kNone;
  }

  bool rewrite(std::size_t n) {
    const Node node = model_.graph.nodes[n];
    const auto& row = graph::operator_of(node).integers;
    if (row.inputs == Shape::none) return false;
    if (row.inputs != Shape::handed_on) return to_integer_operator(n, node, row);
    constexpr std::int64_t kOpsetOfIntegerMaxPool = 12;
    return !(node.is("MaxPool") && model_.opset() < kOpsetOfIntegerMaxPool) && move(n, node);
  }

  bool to_integer_operator(std::size_t n, const Node& node, const Row& row) {
    if (node.outputs().size() != 1 || !reads_what_it_needs(node, row)) return false;
    const int relu = relu_behind(node.outputs()[0]);
    const int at = quantizer(relu == graph::kNone ? node.outputs()[0] : node_at(relu).outputs()[0]);
    if (at == graph::kNone) return false;
    auto result = *pair_of(node_at(at), node_at(at).outputs()[0], false);
    if (!has_kernel(node, row, type_of(result))) return false;
    if (relu != graph::kNone) {
      // On integers: nothing below the zero point.
      auto& clip = model_.graph.nodes[static_cast<std::size_t>(relu)];
      const auto before = fresh(result.values + "_before_Relu");
      clip = Node("Clip", clip.name(), {before, result.zero_point}, {result.values});
      result.values = before;
    }
    auto attributes = node.attributes();
    if (row.inputs == Shape::gemm) std::erase_if(attributes, [](const Attribute& a) { return a.name() == "beta"; });
    if (node.is("Softmax")) attributes.push_back(Attribute::of_int("opset", model_.opset()));
    Node made(std::string(row.operation.type), node.name(), inputs_of(node, row, result), {result.values},
              std::move(attributes), row.contrib ? kMicrosoftDomain : "");
    made.set_body(node.body());
    model_.graph.nodes[n] = std::move(made);
    uses_contrib_ = uses_contrib_ || row.contrib;
    remove(at);
    return true;
  }

  DataType type_of(const Integers& integers) const { return constant(integers.zero_point)->type; }

  // Kernels give the type that they read first. Unsigned integers are multiplied with weights of either type, signed
  // ones with signed ones; all other operators read one type.
  bool has_kernel(const Node& node, const Row& row, DataType result) const {
    const bool multiplies = has_bias(row);
    for (std::size_t i = row.inputs == Shape::where ? 1 : 0; i < node.inputs().size(); ++i) {
      if (multiplies && (i == 2 || (i == 1 && result == DataType::uint8))) continue;
      if (type_of(read(node.inputs()[i]).value()) != result) return false;
    }
    return true;
  }

  static bool has_bias(const Row& row) { return row.inputs == Shape::product || row.inputs == Shape::gemm; }

  // Whether all inputs are integers, and what the operator computes with them is the same.
  bool reads_what_it_needs(const Node& node, const Row& row) const {
    for (std::size_t i = row.inputs == Shape::where ? 1 : 0; i < node.inputs().size(); ++i) {
      const bool bias = has_bias(row) && i == 2;
      if (!read(node.inputs()[i], bias) && !(bias && node.inputs()[i].empty())) return false;
    }
    // The bias of a QGemm has a scale with alpha in it.
    const bool scaled_bias = row.inputs == Shape::gemm && node.float_or("alpha", 1) != 1 && node.inputs().size() > 2;
    return !scaled_bias && reason_against_exchange(node, row.operation.type).empty();
  }

  std::vector<std::string> inputs_of(const Node& node, const Row& row, const Integers& result) const {
    std::vector<std::string> inputs;
    const std::vector<std::string> parameters{result.scale, result.zero_point};
    std::string bias;
    if (row.inputs == Shape::concat) inputs = parameters;
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (row.inputs == Shape::where && i == 0) {
        inputs.push_back(node.inputs()[0]);
      } else if (has_bias(row) && i == 2) {
        if (const auto found = read(node.inputs()[2], true)) bias = found->values;
      } else {
        const auto found = read(node.inputs()[i]).value();
        inputs.insert(inputs.end(), {found.values, found.scale, found.zero_point});
      }
    }
    if (row.inputs == Shape::gemm) inputs.push_back(bias);
    if (row.inputs != Shape::concat) inputs.insert(inputs.end(), parameters.begin(), parameters.end());
    if (row.inputs == Shape::product && !bias.empty()) inputs.push_back(bias);
    return inputs;
  }

  bool move(std::size_t n, const Node& node) {
    const auto source = read(node.inputs()[0]);
    if (!source) return false;
    std::vector<int> quantizers;
    for (const auto& output : node.outputs()) {
      const int at = quantizer(output);
      if (at == graph::kNone) return false;
      const auto& inputs = node_at(at).inputs();
      if (!alike(source->scale, inputs[1]) || !alike(source->zero_point, inputs[2])) return false;
      quantizers.push_back(at);
    }
    auto& moved = model_.graph.nodes[n];
    moved.set_input(0, source->values);
    for (std::size_t o = 0; o < quantizers.size(); ++o) {
      const auto at = static_cast<std::size_t>(quantizers[o]);
      moved.set_output(o, model_.graph.nodes[at].outputs()[0]);
      removed_[at] = true;
    }
    return true;
  }

  bool alike(const std::string& one, const std::string& other) const {
    if (one == other) return true;
    const auto *a = constant(one), *b = constant(other);
    if (a == nullptr || b == nullptr || a->type != b->type || a->dims != b->dims) return false;
    return std::ranges::equal(a->data.bytes(), b->data.bytes());
  }

  void drop_unread_dequantizers() {
    const graph::Index now(model_);
    std::erase_if(model_.graph.nodes, [&](const Node& node) {
      if (!graph::is_dequantize_linear(node)) return false;
      const auto& output = node.outputs()[0];
      return now.consumers(output).empty() && !now.is_output(output) && !now.is_captured(output);
    });
  }

  bool uses_contrib_ = false;
  QOperators found_;
};

}  // namespace

QOperators to_qoperators(onnx::Model& model) { return Writer(model).run(); }

}  // namespace detent::quantization
