#include "quantization/emit/block_floats.h"

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/quark.h"

namespace detent::quantization {
namespace {

using onnx::Attribute;
using onnx::Node;

struct Operator {
  const char* type;
  std::vector<Attribute> attributes;  // but the axis
};

// As AMD Quark writes them: ties are rounded to even.
Operator shared_exponents() {
  return {"BFPQuantizeDequantize",
          {Attribute::of_string("bfp_method", "to_bfp"), Attribute::of_int("bit_width", 16),
           Attribute::of_int("block_size", 8), Attribute::of_int("rounding_mode", 2),
           Attribute::of_int("sub_block_size", 2), Attribute::of_int("sub_block_shift_bits", 1),
           Attribute::of_int("convert_to_bfloat_before_bfp", 0)}};
}

Operator microexponents(std::int64_t bit_width) {
  auto op = shared_exponents();
  op.attributes[0] = Attribute::of_string("bfp_method", "to_bfp_prime");
  op.attributes[1] = Attribute::of_int("bit_width", bit_width);
  op.attributes[2] = Attribute::of_int("block_size", 16);
  return op;
}

Operator microscaling(const char* element_type) {
  return {"MXQuantizeDequantize",
          {Attribute::of_string("element_dtype", element_type), Attribute::of_int("block_size", 32),
           Attribute::of_int("rounding_mode", 2)}};
}

Operator operator_of(BlockFloat format) {
  switch (format) {
    case BlockFloat::bfp16: return shared_exponents();
    case BlockFloat::mx4: return microexponents(11);
    case BlockFloat::mx6: return microexponents(13);
    case BlockFloat::mx9: return microexponents(16);
    case BlockFloat::mxfp8e5m2: return microscaling("fp8_e5m2");
    case BlockFloat::mxfp8e4m3: return microscaling("fp8_e4m3");
    case BlockFloat::mxfp6e3m2: return microscaling("fp6_e3m2");
    case BlockFloat::mxfp6e2m3: return microscaling("fp6_e2m3");
    case BlockFloat::mxfp4e2m1: return microscaling("fp4_e2m1");
    case BlockFloat::mxint8: return microscaling("int8");
    case BlockFloat::none: break;
  }
  throw internal_error("no format of block floats");
}

// Whether the operator has a pole at 0 in this input, or a slope without bound: a small number that stands in a block
// of large ones becomes 0.
bool has_pole(const Node& node, std::size_t input) {
  return node.is("Log") || node.is("Reciprocal") || node.is("Sqrt") || (node.is("Div") && input == 1);
}

class BlockFloatEmitter {
 public:
  BlockFloatEmitter(onnx::Model model, const graph::ValueTypes& types, const Placement& placement, BlockFloat format)
      : made_{std::move(model), 0},
        types_(types),
        placement_(placement),
        operator_(operator_of(format)),
        index_(model_) {
    graph::add_initializers(model_, types_);
  }

  BlockFloatModel run() {
    for (const auto& mark : placement_.marks) add(mark.value);
    for (const auto& bias : placement_.biases) {
      if (!reads_.contains(bias.bias)) add(bias.bias);
    }
    assemble();
    model_.set_opset(onnx::kQuarkDomain, 1);
    return std::move(made_);
  }

 private:
  const Node& at(int n) const { return model_.graph.nodes[static_cast<std::size_t>(n)]; }

  // From the front where that is known, so that axes can be told apart.
  std::int64_t axis_from_front(std::int64_t axis, const std::string& value) const {
    const auto rank = graph::rank_of(types_, value);
    return rank && axis < 0 ? axis + static_cast<std::int64_t>(*rank) : axis;
  }

  // Along which a value is best cut for what made it.
  std::int64_t own_axis(const std::string& value) const {
    const auto rank = graph::rank_of(types_, value);
    if (rank && *rank <= 1) return 0;
    const int maker = index_.producer(value);
    return maker != graph::kNone && at(maker).is("MatMul") ? axis_from_front(-1, value) : 1;
  }

  std::int64_t axis_for(const std::string& value, const Node& reader, std::size_t input) const {
    const auto rank = graph::rank_of(types_, value);
    if (rank && *rank <= 1) return 0;
    if (reader.is("MatMul")) return axis_from_front(input == 0 ? -1 : -2, value);
    if (reader.is("Gemm") && input == 0) return reader.int_or("transA", 0) != 0 ? 0 : 1;
    if (reader.is("Gemm") && input == 1) return reader.int_or("transB", 0) != 0 ? 1 : 0;
    if (reader.is("Softmax")) return axis_from_front(reader.int_or("axis", -1), value);
    return own_axis(value);
  }

  std::vector<Node>& place_of(const std::string& value) {
    const int maker = index_.producer(value);
    return maker == graph::kNone ? head_ : after_[static_cast<std::size_t>(maker)];
  }

  void add_operator(const std::string& from, const std::string& name, const std::string& to, std::int64_t axis,
                    std::vector<Node>& place) {
    auto attributes = operator_.attributes;
    attributes.insert(attributes.begin() + 1, Attribute::of_int("axis", axis));
    place.emplace_back(operator_.type, name, std::vector{from}, std::vector{to}, std::move(attributes),
                       onnx::kQuarkDomain);
    ++made_.operators;
  }

  // One operator for each axis that is wanted, and one that a graph's output comes from, under its name.
  void add(const std::string& value) {
    auto& reads = reads_[value];
    auto& place = place_of(value);
    std::string from = value;
    if (index_.is_output(value)) {
      from = index_.fresh_name(value + "_QuantizeLinear_Input");
      outputs_[value] = from;
      add_operator(from, index_.fresh_name(value + "_DequantizeLinear"), value, own_axis(value), place);
      reads[own_axis(value)] = value;
    }
    for (const int n : index_.consumers(value)) {
      for (std::size_t i = 0; i < at(n).inputs().size(); ++i) {
        if (at(n).inputs()[i] != value || has_pole(at(n), i)) continue;
        const auto axis = axis_for(value, at(n), i);
        if (reads.contains(axis)) continue;
        const auto to = index_.fresh_name(value + "_DequantizeLinear_Output");
        add_operator(from, index_.fresh_name(value + "_DequantizeLinear"), to, axis, place);
        reads[axis] = to;
      }
    }
  }

  void assemble() {
    std::vector<Node> nodes = std::move(head_);
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      auto& node = model_.graph.nodes[n];
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        const std::string value = node.inputs()[i];
        if (!has_pole(node, i)) {
          if (const auto found = reads_.find(value); found != reads_.end())
            node.set_input(i, found->second.at(axis_for(value, node, i)));
        } else if (const auto output = outputs_.find(value); output != outputs_.end()) {
          node.set_input(i, output->second);
        }
      }
      for (std::size_t o = 0; o < node.outputs().size(); ++o) {
        if (const auto found = outputs_.find(node.outputs()[o]); found != outputs_.end())
          node.set_output(o, found->second);
      }
    }
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      nodes.push_back(std::move(model_.graph.nodes[n]));
      for (auto& added : after_[n]) nodes.push_back(std::move(added));
    }
    model_.graph.nodes = std::move(nodes);
  }

  BlockFloatModel made_;
  onnx::Model& model_ = made_.model;
  graph::ValueTypes types_;
  const Placement& placement_;
  Operator operator_;
  graph::Index index_;
  std::unordered_map<std::string, std::map<std::int64_t, std::string>> reads_;  // by value: what is read, by axis
  std::unordered_map<std::string, std::string> outputs_;                        // what makers of graph outputs make
  std::vector<Node> head_;                                                      // before all nodes
  std::unordered_map<std::size_t, std::vector<Node>> after_;                    // after a node
};

}  // namespace

BlockFloatModel emit_block_floats(onnx::Model model, const graph::ValueTypes& types, const Placement& placement,
                                  BlockFloat format) {
  return BlockFloatEmitter(std::move(model), types, placement, format).run();
}

}  // namespace detent::quantization
