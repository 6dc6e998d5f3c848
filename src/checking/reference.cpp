#include "checking/reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "checking/reference_graph.h"
#include "checking/reference_products.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"

namespace detent::checking {
namespace {

using onnx::DataType;
using onnx::Node;

// Operators that ONNX Runtime's CPU has float64 kernels for.
constexpr std::array<std::string_view, 59> kInDouble{"Abs",
                                                     "Add",
                                                     "Ceil",
                                                     "Clip",
                                                     "Concat",
                                                     "Cos",
                                                     "DepthToSpace",
                                                     "Div",
                                                     "Equal",
                                                     "Exp",
                                                     "Expand",
                                                     "Flatten",
                                                     "Floor",
                                                     "Gather",
                                                     "GatherElements",
                                                     "GatherND",
                                                     "Gemm",
                                                     "Greater",
                                                     "Identity",
                                                     "LayerNormalization",
                                                     "Less",
                                                     "Log",
                                                     "LogSoftmax",
                                                     "MatMul",
                                                     "Max",
                                                     "MaxPool",
                                                     "Min",
                                                     "Mul",
                                                     "Neg",
                                                     "PRelu",
                                                     "Pad",
                                                     "Pow",
                                                     "Reciprocal",
                                                     "ReduceMax",
                                                     "ReduceMean",
                                                     "ReduceMin",
                                                     "ReduceProd",
                                                     "ReduceSum",
                                                     "ReduceSumSquare",
                                                     "Relu",
                                                     "Reshape",
                                                     "Round",
                                                     "Shape",
                                                     "Sigmoid",
                                                     "Sign",
                                                     "Sin",
                                                     "Slice",
                                                     "Softmax",
                                                     "SpaceToDepth",
                                                     "Split",
                                                     "Sqrt",
                                                     "Squeeze",
                                                     "Sub",
                                                     "Sum",
                                                     "Tanh",
                                                     "Tile",
                                                     "Transpose",
                                                     "Unsqueeze",
                                                     "Where"};

bool has_double_kernel(const Node& node) {
  return node.domain().empty() && std::binary_search(kInDouble.begin(), kInDouble.end(), node.op_type());
}

struct Limits {
  double low = 0, high = 0;
};

Limits limits_of(DataType type) {
  switch (type) {
    case DataType::uint8: return {0, 255};
    case DataType::int8: return {-128, 127};
    case DataType::uint16: return {0, 65535};
    case DataType::int16: return {-32768, 32767};
    case DataType::uint4: return {0, 15};
    case DataType::int4: return {-8, 7};
    case DataType::int32: return {-2147483648.0, 2147483647.0};
    default: return {};
  }
}

class Rewrite {
 public:
  Rewrite(const onnx::Model& model, const graph::ValueTypes& types) : model_(model), types_(types), g_(model, types) {}

  Reference run() {
    for (const auto& node : model_.graph.nodes) {
      if (is_pair(node, "DequantizeLinear") && read_integers(node)) continue;
      if (is_pair(node, "QuantizeLinear") && add_quantize_linear(node)) continue;
      if (add_product(g_, node) || add_pool(g_, node) || add_piecewise(g_, node)) continue;
      if (has_double_kernel(node) && in_double(node)) continue;
      copy_in_float32(node);
    }
    return {g_.finish(), inexact_.empty(), inexact_};
  }

 private:
  static bool is_pair(const Node& node, std::string_view op_type) {
    return node.op_type() == op_type && (node.domain().empty() || node.domain() == "com.microsoft") &&
           node.int_or("block_size", 0) == 0;
  }

  // Scales and zero points of a pair; nothing where they are not constant float32 numbers, one or along an axis.
  bool read_pair(const Node& node, DataType type, Integers& to) const {
    const auto& inputs = node.inputs();
    const auto* scale = g_.constant(inputs[1]);
    const auto* zero = inputs.size() > 2 && !inputs[2].empty() ? g_.constant(inputs[2]) : nullptr;
    const bool has_zero = inputs.size() > 2 && !inputs[2].empty();
    if (scale == nullptr || scale->type != DataType::float32 || scale->dims.size() > 1 || (has_zero && zero == nullptr))
      return false;
    to.node = &node;
    to.type = zero != nullptr ? zero->type : type;
    if (limits_of(to.type).high == 0) return false;
    to.scales = onnx::to_doubles(*scale);
    to.zeros = zero != nullptr ? onnx::to_int64s(*zero) : std::vector<std::int64_t>{0};
    if (to.scales.empty()) return false;
    const auto rank = g_.rank_of(inputs[0]);
    to.rank = rank.value_or(0);
    to.axis = node.int_or("axis", 1);
    if (to.axis < 0) to.axis += static_cast<std::int64_t>(to.rank);
    const bool fits = rank && to.axis >= 0 && to.axis < static_cast<std::int64_t>(to.rank);
    return to.is_one_scale() || fits;
  }

  bool read_integers(const Node& node) {
    Integers integers;
    if (!read_pair(node, graph::type_of(model_, types_, node.inputs()[0]), integers)) return false;
    const bool is_centred = std::all_of(integers.zeros.begin(), integers.zeros.end(), [](auto z) { return z == 0; });
    if (integers.type == DataType::int32 && !is_centred) return false;
    const auto [low, high] = limits_of(integers.type);
    for (const auto zero : integers.zeros) {
      const auto z = static_cast<double>(zero);
      integers.magnitude = std::max({integers.magnitude, high - z, z - low});
    }
    g_.define_integers(node.outputs()[0], std::move(integers));
    return true;
  }

  bool add_quantize_linear(const Node& node) {
    Integers to;
    const auto& out = node.outputs()[0];
    const auto given = node.int_or("output_dtype", static_cast<std::int64_t>(DataType::uint8));
    if (!g_.is_float(node.inputs()[0]) || !read_pair(node, static_cast<DataType>(given), to)) return false;
    if (to.type == DataType::int4 || to.type == DataType::uint4 || to.type == DataType::int32) return false;
    std::vector<std::int64_t> dims;
    if (!to.is_one_scale()) {
      dims.assign(to.rank - static_cast<std::size_t>(to.axis), 1);
      dims.front() = static_cast<std::int64_t>(to.scales.size());
    }
    const std::vector<double> zeros(to.zeros.begin(), to.zeros.end());
    const auto [low, high] = limits_of(to.type);
    auto y =
        g_.add("Div", {g_.dequantized(node.inputs()[0]), g_.constant_doubles(out + "@scale", dims, to.scales)}, out);
    y = g_.add("Round", {y}, out + "@round");
    const auto zero_dims = zeros.size() > 1 ? dims : std::vector<std::int64_t>{};
    y = g_.add("Add", {y, g_.constant_doubles(out + "@zero", zero_dims, zeros)}, out + "@shift");
    y = g_.add("Max", {y, g_.constant_doubles(out + "@low", {}, {low})}, out + "@max");
    y = g_.add("Min", {y, g_.constant_doubles(out + "@high", {}, {high})}, out + "@min");
    g_.add(Node("Cast", "", {y}, {out}, {onnx::Attribute::of_int("to", static_cast<std::int64_t>(to.type))}));
    g_.define_float(out);
    return true;
  }

  bool knows_types(const Node& node) const {
    const auto is_known = [&](const auto& name) {
      return name.empty() || graph::type_of(model_, types_, name) != DataType::undefined;
    };
    return std::all_of(node.inputs().begin(), node.inputs().end(), is_known) &&
           std::all_of(node.outputs().begin(), node.outputs().end(), is_known);
  }

  bool in_double(const Node& node) {
    const auto is_float = [&](const auto& name) { return !name.empty() && g_.is_float(name); };
    if (!knows_types(node) || std::none_of(node.inputs().begin(), node.inputs().end(), is_float)) return false;
    Node copy = node;
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (is_float(node.inputs()[i])) copy.set_input(i, g_.dequantized(node.inputs()[i]));
    }
    for (std::size_t i = 0; i < node.outputs().size(); ++i) {
      const auto& name = node.outputs()[i];
      if (!is_float(name)) {
        g_.define_float(name);
        continue;
      }
      copy.set_output(i, name + "@double");
      g_.define_double(name, name + "@double");
    }
    g_.add(std::move(copy));
    return true;
  }

  void copy_in_float32(const Node& node) {
    for (const auto& name : node.inputs()) g_.need_float(name);
    for (const auto& name : graph::captured_names(model_, node)) g_.need_float(name);
    const bool computes = node.op_type() != "Cast" && !graph::is_dequantize_linear(node) &&
                          std::any_of(node.outputs().begin(), node.outputs().end(),
                                      [&](const auto& name) { return !name.empty() && g_.is_float(name); });
    const bool is_integer_op = node.op_type().starts_with("QLinear");
    if ((computes || is_integer_op) && inexact_.empty()) inexact_ = node.op_type();
    for (const auto& name : node.outputs()) g_.define_float(name);
    g_.add(node);
  }

  const onnx::Model& model_;
  const graph::ValueTypes& types_;
  ReferenceGraph g_;
  std::string inexact_;
};

}  // namespace

Reference reference_of(const onnx::Model& model, const graph::ValueTypes& types) {
  // From here on ONNX Runtime has the kernels of float64, of which PRelu's is the last.
  constexpr std::int64_t kOpset = 17;
  if (model.opset() >= kOpset) return Rewrite(model, types).run();
  onnx::Model raised = model;
  graph::upgrade_opset(raised, types, kOpset);
  return Rewrite(raised, types).run();
}

}  // namespace detent::checking
