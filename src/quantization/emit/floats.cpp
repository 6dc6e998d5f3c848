#include "quantization/emit/emitters.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/write.h"
#include "quantization/floats/float_rules.h"
#include "quantization/floats/half_values.h"

namespace detent::quantization {
namespace {

using onnx::DataType;
using onnx::Node;

constexpr std::size_t kTwiceBytes = 256;  // a constant of so few takes no more room twice than a Cast does

onnx::Tensor converted(const onnx::Tensor& tensor, std::string name, DataType type) {
  const auto size = onnx::byte_count(type, tensor.count()).value_or(0);
  auto produce = [data = tensor.data, type](const onnx::Sink& sink) {
    std::vector<std::uint16_t> out;
    onnx::for_each_float(data, [&](std::span<const float> values, std::int64_t) {
      out.resize(values.size());
      to_16_bits(values, type == DataType::float16 ? FloatType::float16 : FloatType::bfloat16, out.data());
      sink(std::as_bytes(std::span<const std::uint16_t>(out)));
    });
  };
  return {std::move(name), type, tensor.dims, onnx::TensorData::produced(size, std::move(produce)), {}, false};
}

// A float32 value of the model, in the types that it is wanted in.
struct Value {
  std::string high, low;  // its names as float32 and in 16 bits
  bool made_low = false;
  bool wants_high = false, wants_low = false;
  bool shown_high = false, shown_low = false;  // its own name has this type, since it is seen from outside
};

class FloatEmitter {
 public:
  FloatEmitter(FloatModel model, const Placement& placement)
      : model_(std::move(model.model)),
        types_(std::move(model.types)),
        low_(placement.selected),
        type_(placement.float_type == FloatType::bfloat16 ? DataType::bfloat16 : DataType::float16),
        keep_io_(placement.keep_io_types),
        index_(model_) {}

  onnx::Model run() {
    collect();
    for (auto& [name, value] : values_) add_names(name, value);
    store_constants();
    rewrite();
    retype();
    collapse();
    return std::move(model_);
  }

 private:
  bool is_float(const std::string& value) const {
    return !value.empty() && graph::type_of(model_, types_, value) == DataType::float32;
  }

  Value& at(const std::string& name) {
    const auto [it, added] = position_.try_emplace(name, values_.size());
    if (added) values_.emplace_back(name, Value());
    return values_[it->second].second;
  }

  // How node n takes its input i: in 16 bits, as float32, or as it is.
  enum class Taken { high, low, any };
  Taken taken(std::size_t n, std::size_t i) const {
    const auto* rule = float_rule(model_.graph.nodes[n]);
    if (rule == nullptr) return Taken::high;
    const auto from = type_ == DataType::float16 ? rule->float16_from : rule->bfloat16_from;
    if (rule->trait == FloatTrait::reads_any) return from <= model_.opset() ? Taken::any : Taken::high;
    return low_[n] && !in_mask(rule->float32_inputs, i) ? Taken::low : Taken::high;
  }

  bool makes_low(std::size_t n, std::size_t output) const {
    return low_[n] && !in_mask(float_rule(model_.graph.nodes[n])->float32_outputs, output);
  }

  void collect() {
    const auto show = [&](const std::string& name, bool is_input) {
      if (!is_float(name)) return;
      auto& value = at(name);
      const bool high = keep_io_ || index_.is_captured(name);
      (high ? value.shown_high : value.shown_low) = true;
      (high ? value.wants_high : value.wants_low) = true;
      if (is_input) value.made_low = !high;
    };
    for (const auto& input : model_.graph.inputs) show(input.name, true);
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      const auto& node = model_.graph.nodes[n];
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (!is_float(node.inputs()[i])) continue;
        auto& value = at(node.inputs()[i]);
        const auto how = taken(n, i);
        value.wants_high = value.wants_high || how == Taken::high;
        value.wants_low = value.wants_low || how == Taken::low;
      }
      for (std::size_t o = 0; o < node.outputs().size(); ++o) {
        if (is_float(node.outputs()[o])) at(node.outputs()[o]).made_low = makes_low(n, o);
      }
    }
    for (const auto& tensor : model_.graph.initializers) {
      if (tensor.type == DataType::float32) at(tensor.name);
    }
    for (const auto& output : model_.graph.outputs) show(output.name, false);
    for (auto& [name, value] : values_) {
      if (index_.is_captured(name)) value.shown_high = value.wants_high = true;
    }
  }

  void add_names(const std::string& name, Value& value) {
    const bool constant = index_.initializer(name) != graph::kNone;
    if (constant) value.made_low = value.wants_low && !value.wants_high;
    const bool own_is_low = value.shown_low || (!value.shown_high && value.made_low);
    value.high = own_is_low && (value.wants_high || !value.made_low) ? index_.fresh_name(name + "_float32") : name;
    value.low = own_is_low ? name : index_.fresh_name(name + (type_ == DataType::float16 ? "_float16" : "_bfloat16"));
  }

  // A constant that is wanted in both types, such as a weight that is also a result of the model, is stored once: the
  // runtime casts it when it loads the model. Twice, it would make the file larger than the float model's.
  void store_constants() {
    std::vector<onnx::Tensor> all;
    for (auto& tensor : model_.graph.initializers) {
      if (tensor.type != DataType::float32) {
        all.push_back(std::move(tensor));
        continue;
      }
      const auto& value = at(tensor.name);
      const bool is_cast = value.wants_high && value.wants_low && tensor.data.size() > kTwiceBytes;
      if (is_cast) constant_casts_.push_back(cast(value.high, value.low, type_));
      if (value.wants_low && !is_cast) all.push_back(converted(tensor, value.low, type_));
      if (!value.wants_high && value.wants_low) continue;
      if (value.high != tensor.name) {
        tensor.name = value.high;
        tensor.raw = {};  // the message carries another name
      }
      all.push_back(std::move(tensor));
    }
    model_.graph.initializers = std::move(all);
  }

  // The cast that a value is wanted in both types for, or none.
  void add_cast(const std::string& name, std::vector<Node>& out) {
    const auto found = position_.find(name);
    if (found == position_.end() || index_.initializer(name) != graph::kNone) return;
    const auto& value = values_[found->second].second;
    if (!(value.made_low ? value.wants_high : value.wants_low)) return;
    const auto& to = value.made_low ? value.high : value.low;
    std::string from = value.made_low ? value.low : value.high;
    const int producer = index_.producer(name);
    // Of integers, both types are made at once: no cast of a cast.
    if (producer != graph::kNone) {
      const auto& node = model_.graph.nodes[static_cast<std::size_t>(producer)];
      if (node.is("Cast") && !is_float(node.inputs()[0])) from = node.inputs()[0];
    }
    out.push_back(cast(from, to, value.made_low ? DataType::float32 : type_));
  }

  Node cast(const std::string& from, const std::string& to, DataType type) {
    return {"Cast", index_.fresh_name(to + "_Cast"), std::vector{from}, std::vector{to},
            std::vector{onnx::Attribute::of_int("to", static_cast<std::int64_t>(type))}};
  }

  void rewrite() {
    auto out = std::move(constant_casts_);
    for (const auto& input : model_.graph.inputs) add_cast(input.name, out);
    auto& nodes = model_.graph.nodes;
    std::vector<std::vector<Node>> casts(nodes.size());
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      for (const auto& output : nodes[n].outputs()) add_cast(output, casts[n]);
    }
    std::vector<std::vector<Taken>> reads(nodes.size());
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      for (std::size_t i = 0; i < nodes[n].inputs().size(); ++i) reads[n].push_back(taken(n, i));
    }
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      rename(nodes[n], reads[n]);
      out.push_back(std::move(nodes[n]));
      for (auto& cast : casts[n]) out.push_back(std::move(cast));
    }
    nodes = std::move(out);
  }

  void rename(Node& node, const std::vector<Taken>& reads) {
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      const auto found = position_.find(node.inputs()[i]);
      if (found == position_.end() || node.inputs()[i].empty()) continue;
      const auto& value = values_[found->second].second;
      const bool low = reads[i] == Taken::low || (reads[i] == Taken::any && value.made_low);
      const auto& name = low ? value.low : value.high;
      if (name != node.inputs()[i]) node.set_input(i, name);
    }
    for (std::size_t o = 0; o < node.outputs().size(); ++o) {
      const auto found = position_.find(node.outputs()[o]);
      if (found == position_.end() || node.outputs()[o].empty()) continue;
      const auto& value = values_[found->second].second;
      const auto& name = value.made_low ? value.low : value.high;
      if (name != node.outputs()[o]) node.set_output(o, name);
      if (value.made_low && node.is("Cast"))
        node.set_attribute(onnx::Attribute::of_int("to", static_cast<std::int64_t>(type_)));
    }
  }

  // Declared types of values whose own name now has another.
  void retype() {
    for (auto* infos : {&model_.graph.inputs, &model_.graph.outputs, &model_.graph.value_infos}) {
      for (auto& info : *infos) {
        const auto found = position_.find(info.name);
        if (found == position_.end() || values_[found->second].second.low != info.name) continue;
        info = onnx::retyped(info, type_, info.shape);
      }
    }
  }

  using Names = std::unordered_map<std::string, std::string>;

  // The value in 16 bits that a cast to 16 bits makes once more. `source` learns of casts to float32.
  std::optional<std::string> low_source(const Node& cast, const std::unordered_set<std::string>& in_type,
                                        Names& source) const {
    const auto to = static_cast<DataType>(cast.int_or("to", 0));
    const auto& from = cast.inputs()[0];
    const auto before = source.find(from);
    if (to == DataType::float32 && in_type.contains(from)) source[cast.outputs()[0]] = from;
    if (to != type_) return std::nullopt;
    if (before != source.end()) return before->second;
    return in_type.contains(from) ? std::make_optional(from) : std::nullopt;
  }

  // What came in 16 bits, was cast to float32 for the sake of this conversion, and is cast back.
  void collapse() {
    std::unordered_set<std::string> in_type;
    for (const auto& input : model_.graph.inputs) {
      if (input.type == type_) in_type.insert(input.name);
    }
    for (const auto& [name, value] : values_) {
      if (value.made_low) in_type.insert(value.low);
    }
    Names source;  // of casts to float32, by what they make
    Names alias;
    std::vector<Node> nodes;
    for (auto& node : model_.graph.nodes) {
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (const auto same = alias.find(node.inputs()[i]); same != alias.end()) node.set_input(i, same->second);
      }
      const auto original = node.is("Cast") ? low_source(node, in_type, source) : std::nullopt;
      if (!original) {
        nodes.push_back(std::move(node));
      } else if (index_.is_output(node.outputs()[0])) {
        nodes.emplace_back("Identity", node.name(), std::vector{*original}, node.outputs());
      } else {
        alias[node.outputs()[0]] = *original;
      }
    }
    model_.graph.nodes = std::move(nodes);
    const graph::Index now(model_);
    std::erase_if(model_.graph.nodes, [&](const Node& node) {
      const auto& made = node.outputs().front();
      return source.contains(made) && now.consumers(made).empty() && !now.is_output(made) && !now.is_captured(made);
    });
  }

  onnx::Model model_;
  graph::ValueTypes types_;
  const std::vector<bool>& low_;
  DataType type_;
  bool keep_io_;
  graph::Index index_;
  std::vector<std::pair<std::string, Value>> values_;  // in the order of the graph
  std::unordered_map<std::string, std::size_t> position_;
  std::vector<Node> constant_casts_;
};

using onnx::Attribute;

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
  BlockFloatEmitter(FloatModel model, const Assignment& assignment)
      : model_(std::move(model.model)),
        types_(std::move(model.types)),
        placement_(assignment.placement),
        operator_(operator_of(assignment.block_float)),
        index_(model_) {
    graph::add_initializers(model_, types_);
  }

  onnx::Model run() {
    for (const auto& mark : placement_.marks) add(mark.value);
    for (const auto& bias : placement_.biases) {
      if (!reads_.contains(bias.bias)) add(bias.bias);
    }
    assemble();
    model_.set_opset(onnx::kQuarkDomain, 1);
    return std::move(model_);
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

  onnx::Model model_;
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

Emitted emit_floats(FloatModel model, const Assignment& assignment) {
  Emitted emitted{FloatEmitter(std::move(model), assignment.placement).run(), {}, {}};
  if (assignment.placement.float_type == FloatType::float16) add_float16_barriers(emitted.model);
  return emitted;
}

Emitted emit_block_floats(FloatModel model, const Assignment& assignment) {
  return {BlockFloatEmitter(std::move(model), assignment).run(), {}, {}};
}

}  // namespace detent::quantization
