#include "quantization/emit/float16.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "graph/index.h"
#include "onnx/retyped.h"
#include "onnx/write.h"
#include "quantization/emit/barriers.h"
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
  FloatEmitter(onnx::Model model, const graph::ValueTypes& types, const FloatPlacement& placement, FloatType type,
               bool keep_io_types)
      : model_(std::move(model)),
        types_(types),
        low_(placement.low),
        type_(type == FloatType::bfloat16 ? DataType::bfloat16 : DataType::float16),
        keep_io_(keep_io_types),
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
  const graph::ValueTypes& types_;
  const std::vector<bool>& low_;
  DataType type_;
  bool keep_io_;
  graph::Index index_;
  std::vector<std::pair<std::string, Value>> values_;  // in the order of the graph
  std::unordered_map<std::string, std::size_t> position_;
  std::vector<Node> constant_casts_;
};

}  // namespace

onnx::Model emit_floats(onnx::Model model, const graph::ValueTypes& types, const FloatPlacement& placement,
                        FloatType type, bool keep_io_types) {
  auto emitted = FloatEmitter(std::move(model), types, placement, type, keep_io_types).run();
  if (type == FloatType::float16) add_float16_barriers(emitted);
  return emitted;
}

}  // namespace detent::quantization
