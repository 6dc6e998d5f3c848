#include "quantization/emit/emitters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "graph/constants.h"
#include "graph/patterns.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "onnx/packed_numbers.h"
#include "onnx/write.h"
#include "quantization/emit/integer_operators.h"

namespace detent::quantization {
namespace {

using onnx::DataType;
using onnx::Node;

constexpr const char* kMicrosoftDomain = "com.microsoft";
constexpr std::int64_t kOpsetForAllTypes = 21;
constexpr std::int64_t kIrVersionFor4Bit = 10, kIrVersionForFloats = 9;

// Names of the initializers that hold a value's scale and zero point.
struct ParamNames {
  std::string scale, zero_point;
};

onnx::TensorData zero_points(const ValueAssignment& params) {
  std::vector<std::int16_t> wide;
  for (const auto& p : params.slices) wide.push_back(static_cast<std::int16_t>(p.zero_point));
  if (is_16_bit(params.type)) return onnx::TensorData::of<std::int16_t>(wide);
  if (is_4_bit(params.type)) return onnx::TensorData::owned(onnx::packed_nibbles<std::int16_t>(wide));
  std::vector<std::int8_t> narrow;
  for (const auto zero : wide) narrow.push_back(static_cast<std::int8_t>(zero));
  return onnx::TensorData::of<std::int8_t>(narrow);
}

class QdqEmitter {
 public:
  QdqEmitter(onnx::Model model, const Assignment& assignment)
      : emitted_{std::move(model), {}, {}},
        placement_(assignment.placement),
        values_(assignment.values),
        is_for_htp_(assignment.runtime.htp),
        index_(model_) {
    const bool late =
        std::any_of(values_.begin(), values_.end(), [](const auto& v) { return needs_opset_21(v.second.type); });
    if ((late || works_with_16_bits()) && model_.opset() < kOpsetForAllTypes) domain_ = kMicrosoftDomain;
  }

  // Behind the pairs that are made here, see integer_operators.h.
  bool works_with_16_bits() const {
    const auto& nodes = model_.graph.nodes;
    return is_for_htp_ &&
           std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.is("LayerNormalization"); });
  }

  Emitted run() {
    for (const auto& fused : placement_.fused) fuse(fused);
    for (const auto& mark : placement_.marks) {
      if (!values_.contains(mark.value)) continue;
      if (mark.is_constant) {
        add_constant(mark);
      } else {
        add_pair(mark);
      }
    }
    for (const auto& bias : placement_.biases) {
      if (!bias.stays_float) add_bias(bias);
    }
    assemble();
    tidy_up();
    return std::move(emitted_);
  }

 private:
  void add_initializer(onnx::Tensor tensor) { initializers_.push_back(std::move(tensor)); }

  // Whether the integers end where the activation would clip, give or take one step.
  bool saturates_alike(const FusedActivation& fused) const {
    const auto found = values_.find(fused.output);
    if (found == values_.end()) return false;
    const auto& p = found->second.slices.front();
    const IntRange q = full_range(found->second.type);
    const double low = static_cast<double>(q.min - p.zero_point) * p.scale;
    const double high = static_cast<double>(q.max - p.zero_point) * p.scale;
    return low >= static_cast<double>(fused.low) - p.scale && high <= static_cast<double>(fused.high) + p.scale;
  }

  void fuse(const FusedActivation& fused) {
    if (!fused.removable || !saturates_alike(fused)) return;
    removed_.insert(fused.node);
    made_as_[fused.output] = fused.input;
  }

  const ParamNames& param_names(const std::string& value) {
    const auto& params = values_.at(value);
    const auto [it, added] = names_.try_emplace(params.source);
    if (!added) return it->second;
    ParamNames& names = it->second;
    names = {index_.fresh_name(params.source + "_scale"), index_.fresh_name(params.source + "_zero_point")};
    std::vector<std::int64_t> dims;
    if (params.granularity.kind == Granularity::Kind::blocks) {
      dims = scale_dims(params.granularity,
                        model_.graph.initializers[static_cast<std::size_t>(index_.initializer(value))].dims);
    } else if (!params.granularity.is_tensor()) {
      dims = {static_cast<std::int64_t>(params.slices.size())};
    }
    std::vector<float> scales;
    for (const auto& p : params.slices) scales.push_back(p.scale);
    add_initializer(onnx::make_tensor<float>(names.scale, DataType::float32, dims, scales));
    add_initializer({names.zero_point, data_type(params.type), dims, zero_points(params), {}, false});
    return names;
  }

  Node make_node(const char* op_type, const std::string& name, std::vector<std::string> inputs,
                 const std::string& output, const Granularity& granularity) const {
    std::vector<onnx::Attribute> attributes;
    if (!granularity.is_tensor())
      attributes.push_back(onnx::Attribute::of_int("axis", static_cast<std::int64_t>(granularity.axis)));
    if (granularity.kind == Granularity::Kind::blocks)
      attributes.push_back(onnx::Attribute::of_int("block_size", granularity.block));
    return {op_type, name, std::move(inputs), {output}, std::move(attributes), domain_};
  }

  std::vector<Node>& after_producer(const std::string& value) {
    std::string source = value;
    while (made_as_.contains(source)) source = made_as_.at(source);
    const int producer = index_.producer(source);
    return producer == graph::kNone ? head_ : after_[static_cast<std::size_t>(producer)];
  }

  void add_constant(const Mark& mark) {
    const auto& params = values_.at(mark.value);
    const auto& tensor = model_.graph.initializers[static_cast<std::size_t>(index_.initializer(mark.value))];
    const ParamNames names = param_names(mark.value);
    const auto stored = index_.fresh_name(mark.value + "_quantized");
    const auto output = index_.fresh_name(mark.value + "_DequantizeLinear_Output");
    add_initializer(quantized_weight(tensor, stored, {{params.type}, params.granularity}, params.slices));
    head_.push_back(make_node("DequantizeLinear", index_.fresh_name(mark.value + "_DequantizeLinear"),
                              {stored, names.scale, names.zero_point}, output, params.granularity));
    new_input_[mark.value] = output;
    emitted_.provenance.values[mark.value] = {stored, names.scale, names.zero_point, output, {}};
    if (mark.paired.size() == 1) emitted_.provenance.values[mark.value].paired = mark.paired.front();
  }

  void add_pair(const Mark& mark) {
    const std::string& value = mark.value;
    const ParamNames names = param_names(value);
    std::string from = value;
    std::string to = index_.fresh_name(value + "_DequantizeLinear_Output");
    auto& place = after_producer(value);
    if (mark.float_readers_unrounded) {
      bypassed_.insert(value);
      new_input_[value] = to;
    } else if (index_.is_output(value)) {
      // The graph's output keeps its name: readers and the outside see the dequantized value.
      from = index_.fresh_name(value + "_QuantizeLinear_Input");
      to = value;
      new_output_[value] = from;
    } else {
      new_input_[value] = to;
    }
    const auto stored = index_.fresh_name(value + "_QuantizeLinear_Output");
    place.push_back(make_node("QuantizeLinear", index_.fresh_name(value + "_QuantizeLinear"),
                              {from, names.scale, names.zero_point}, stored, Granularity::tensor()));
    place.push_back(make_node("DequantizeLinear", index_.fresh_name(value + "_DequantizeLinear"),
                              {stored, names.scale, names.zero_point}, to, Granularity::tensor()));
    emitted_.provenance.values[value] = {stored, names.scale, names.zero_point, to};
  }

  // A bias that only one node reads, as a bias, is replaced under its own name; otherwise the node gets a copy.
  std::string bias_tensor_name(const BiasMark& mark) {
    const bool alone = index_.consumers(mark.bias).size() == 1 && !index_.is_captured(mark.bias) &&
                       !index_.is_output(mark.bias) && !new_input_.contains(mark.bias);
    if (alone && used_biases_.insert(mark.bias).second) return mark.bias;
    int& n = bias_copies_[mark.bias];
    while (index_.knows(fmt::format("{}{}", mark.bias, n))) ++n;
    const auto name = index_.fresh_name(fmt::format("{}{}", mark.bias, n));
    bias_input_[mark.node] = name;
    return name;
  }

  void add_bias(const BiasMark& mark) {
    const auto weight = values_.find(mark.weight);
    const auto input = values_.find(mark.input);
    const auto& tensor = model_.graph.initializers[static_cast<std::size_t>(index_.initializer(mark.bias))];
    const auto count = static_cast<std::size_t>(tensor.count());
    const Node& node = model_.graph.nodes[mark.node];
    if (weight == values_.end() || input == values_.end() ||
        weight->second.granularity.kind == Granularity::Kind::blocks ||
        (weight->second.slices.size() > 1 && weight->second.slices.size() != count)) {
      emitted_.notes.push_back(fmt::format("{}: the bias '{}' stays in float: its input or weight has no fitting scale",
                                           node.label(), mark.bias));
      return;
    }
    std::vector<float> values(count), scales;
    std::memcpy(values.data(), tensor.data.bytes().data(), count * sizeof(float));
    for (const auto& p : weight->second.slices)
      scales.push_back(mark.alpha * input->second.slices.front().scale * p.scale);
    if (std::any_of(scales.begin(), scales.end(), [](float s) { return s < std::numeric_limits<float>::min(); })) {
      emitted_.notes.push_back(
          fmt::format("{}: the bias '{}' stays in float: its scale would underflow", node.label(), mark.bias));
      return;
    }
    std::vector<std::int32_t> integers(count);
    std::size_t cut = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double scale = scales.size() > 1 ? scales[i] : scales.front();
      const double q = std::nearbyint(static_cast<double>(mark.beta) * static_cast<double>(values[i]) / scale);
      const double fitting = std::clamp(q, -2147483648.0, 2147483647.0);
      if (fitting != q) ++cut;
      integers[i] = static_cast<std::int32_t>(fitting);
    }
    if (cut > 0) {
      emitted_.notes.push_back(
          fmt::format("{}: {} of {} values of the bias '{}' are clipped: at its scale they do not fit int32",
                      node.label(), cut, count, mark.bias));
    }
    const auto output = bias_tensor_name(mark);
    const auto stored = index_.fresh_name(output + "_quantized");
    const auto scale_name = index_.fresh_name(stored + "_scale");
    const auto zero_name = index_.fresh_name(stored + "_zero_point");
    const auto channels = static_cast<std::int64_t>(scales.size());
    const bool per_channel = channels > 1;
    const std::vector<std::int32_t> zeros(scales.size(), 0);
    add_initializer(onnx::make_tensor<std::int32_t>(stored, DataType::int32, tensor.dims, integers));
    add_initializer(onnx::make_tensor<float>(scale_name, DataType::float32, {channels}, scales));
    add_initializer(onnx::make_tensor<std::int32_t>(
        zero_name, DataType::int32, per_channel ? std::vector<std::int64_t>{channels} : std::vector<std::int64_t>{},
        zeros));
    head_.push_back(make_node("DequantizeLinear", index_.fresh_name(output + "_DequantizeLinear"),
                              {stored, scale_name, zero_name}, output,
                              per_channel ? Granularity::along(0) : Granularity::tensor()));
    emitted_.provenance.biases[mark.node] = {stored, scale_name};
    if (mark.beta != 1.0F) model_.graph.nodes[mark.node].set_attribute(onnx::Attribute::of_float("beta", 1.0F));
  }

  // Lets a node of the float model read what its inputs have become.
  void redirect(std::size_t position, Node& node) const {
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      const auto found = new_input_.find(node.inputs()[i]);
      if (found == new_input_.end()) continue;
      if (placement_.selected[position] || !bypassed_.contains(found->first)) node.set_input(i, found->second);
    }
    if (const auto copy = bias_input_.find(position); copy != bias_input_.end()) node.set_input(2, copy->second);
  }

  void assemble() {
    for (const auto& [output, source] : made_as_) new_output_.try_emplace(source, output);
    const auto final_output = [&](std::string name) {
      while (new_output_.contains(name)) name = new_output_.at(name);
      return name;
    };
    auto& places = emitted_.provenance.nodes;
    places.resize(model_.graph.nodes.size());
    std::vector<Node> nodes = std::move(head_);
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      auto& node = model_.graph.nodes[n];
      if (!removed_.contains(n)) {
        redirect(n, node);
        for (std::size_t o = 0; o < node.outputs().size(); ++o) {
          const auto name = final_output(node.outputs()[o]);
          if (name != node.outputs()[o]) node.set_output(o, name);
        }
        places[n] = nodes.size();
        nodes.push_back(std::move(node));
      }
      for (auto& added : after_[n]) nodes.push_back(std::move(added));
    }
    model_.graph.nodes = std::move(nodes);
  }

  void tidy_up() {
    // A bias replaced under its own name is now the output of its DequantizeLinear.
    std::erase_if(model_.graph.initializers, [&](const auto& tensor) { return used_biases_.contains(tensor.name); });
    for (auto& tensor : initializers_) model_.graph.initializers.push_back(std::move(tensor));
    graph::drop_unused_initializers(model_);
    const graph::Index now(model_);
    std::erase_if(model_.graph.value_infos, [&](const auto& info) { return !now.knows(info.name); });
    if (domain_ == kMicrosoftDomain) model_.set_opset(kMicrosoftDomain, 1);
    std::int64_t ir_version = model_.ir_version;
    for (const auto& [name, value] : values_) {
      if (is_4_bit(value.type)) ir_version = std::max(ir_version, kIrVersionFor4Bit);
      if (is_float(value.type)) ir_version = std::max(ir_version, kIrVersionForFloats);
    }
    if (ir_version != model_.ir_version) model_.set_ir_version(ir_version);
  }

  Emitted emitted_;
  onnx::Model& model_ = emitted_.model;
  const Placement& placement_;
  const AssignedValues& values_;
  bool is_for_htp_;
  graph::Index index_;
  std::string domain_;

  std::unordered_map<std::string, ParamNames> names_;
  std::vector<onnx::Tensor> initializers_;
  std::unordered_set<std::size_t> removed_;
  std::unordered_map<std::string, std::string> new_input_;   // what readers of a value read instead
  std::unordered_set<std::string> bypassed_;                 // only quantized nodes read something else
  std::unordered_map<std::string, std::string> new_output_;  // what a value's producer makes instead
  std::unordered_map<std::string, std::string> made_as_;  // output of a removed activation -> what its producer makes
  std::unordered_map<std::size_t, std::string> bias_input_;  // node -> its bias where it was copied
  std::unordered_set<std::string> used_biases_;
  std::unordered_map<std::string, int> bias_copies_;          // the number to try next
  std::vector<Node> head_;                                    // before all nodes
  std::unordered_map<std::size_t, std::vector<Node>> after_;  // after a node
};

}  // namespace

Emitted emit_qdq(FloatModel model, const Assignment& assignment) {
  const auto& types = model.types;
  const auto& runtime = assignment.runtime;
  auto emitted = QdqEmitter(std::move(model.model), assignment).run();
  add_barriers_before_bodies(emitted);
  add_barriers_before_floats(emitted);
  add_barriers_for_loading(emitted, types);
  if (runtime.barriers) {
    add_barriers(emitted);
    keep_integer_products(emitted, types);
  }
  if (runtime.hard_sigmoids) emit_hard_sigmoids(emitted);
  if (runtime.one_width) widen_operators(emitted, types, runtime.htp);
  keep_inputs_as_they_are(emitted.model);
  return emitted;
}

namespace {

// A Max of one value hands it on as it is (barriers.h).
const std::string& behind_barrier(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int producer = index.producer(value);
  if (producer == graph::kNone) return value;
  const auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
  return node.is("Max") && node.inputs().size() == 1 ? node.inputs()[0] : value;
}

}  // namespace

std::unordered_map<std::string, std::string> dequantized_values(const onnx::Model& quantized,
                                                                const graph::Index& index) {
  std::unordered_map<std::string, std::string> found;
  for (const auto& node : quantized.graph.nodes) {
    if (!graph::is_dequantize_linear(node)) continue;
    const int producer = index.producer(node.inputs()[0]);
    if (producer == graph::kNone) continue;
    const auto& quantize = quantized.graph.nodes[static_cast<std::size_t>(producer)];
    if (!graph::is_quantize_linear(quantize)) continue;
    found.try_emplace(behind_barrier(quantized, index, quantize.inputs()[0]), node.outputs()[0]);
  }
  return found;
}

namespace {

constexpr std::size_t kKeyScale = 12, kValueScale = 13;  // inputs of GroupQueryAttention
constexpr std::int64_t kIrOfFloat8 = 9;

onnx::DataType stored_type(KvCacheType type) {
  if (type == KvCacheType::int8) return onnx::DataType::int8;
  if (type == KvCacheType::int4) return onnx::DataType::uint8;
  return onnx::DataType::float8e4m3fn;
}

class CacheEmitter : graph::Rewriter {
 public:
  CacheEmitter(onnx::Model& model, const KvCacheConfig& config) : Rewriter(model), config_(config) {}

  void emit(const graph::CachedAttention& cache, const KvScales& scales) {
    if (!cache.is_joined()) attend(model_.graph.nodes[cache.key_node], cache, scales);
    store(cache, cache.key_node, cache.past_key, cache.present_key, scales.keys);
    store(cache, cache.value_node, cache.past_value, cache.present_value, scales.values);
  }

  void finish() {
    rebuild([&](Node& node) {
      read_floats(node);
      const auto found = node.is("Concat") ? joined_.find(node.outputs()[0]) : joined_.end();
      if (found == joined_.end()) return false;
      join(node, found->second);
      return true;
    });
    move_constants_to_model();
  }

 private:
  // Earlier keys or values with new ones.
  struct Joined {
    std::string past, present, scale;
    DataType type;     // of what is joined
    std::string read;  // as floats
  };

  void attend(Node& node, const graph::CachedAttention& cache, const KvScales& scales) {
    auto inputs = node.inputs();
    inputs.resize(std::max(inputs.size(), kValueScale + 1));
    inputs[kKeyScale] = constant(node.id() + "/k_scale", cache, scales.keys);
    inputs[kValueScale] = constant(node.id() + "/v_scale", cache, scales.values);
    node.set_inputs(std::move(inputs));
    const char* granularity = config_.per_channel ? "PER_CHANNEL" : "PER_TENSOR";
    node.set_attribute(onnx::Attribute::of_string("k_quant_type", granularity));
    node.set_attribute(onnx::Attribute::of_string("v_quant_type", granularity));
    node.set_attribute(onnx::Attribute::of_int("kv_cache_bit_width", config_.type == KvCacheType::int4 ? 4 : 8));
  }

  void store(const graph::CachedAttention& cache, std::size_t node, const std::string& past, const std::string& present,
             const std::vector<float>& scales) {
    const auto type = retype(model_.graph.inputs, past, cache);
    retype(model_.graph.outputs, present, cache);
    if (!cache.is_joined()) return;
    const auto& all = model_.graph.nodes[node].outputs()[0];
    joined_[all] = {past, present, constant(past + "_scale", cache, scales), type, {}};
    std::erase_if(model_.graph.value_infos, [&](const auto& value) { return value.name == all; });
  }

  void read_floats(Node& node) const {
    auto inputs = node.inputs();
    for (auto& value : inputs) {
      const auto found = joined_.find(value);
      if (found == joined_.end() || node.is("Shape") || node.outputs()[0] == found->second.present) continue;
      value = found->second.read;
    }
    if (inputs != node.inputs()) node.set_inputs(std::move(inputs));
  }

  // New positions are rounded before they join the earlier ones; what reads all positions reads floats.
  void join(Node& node, Joined& part) {
    auto inputs = node.inputs();
    for (auto& value : inputs) {
      if (value != part.past) value = integers(value, part);
    }
    node.set_inputs(std::move(inputs));
    nodes_.push_back(node);
    part.read = floats(node.outputs()[0], part);
  }

  std::string integers(std::string value, const Joined& part) {
    if (part.type != DataType::float32) value = cast(value, DataType::float32);
    if (config_.per_channel) value = append("Div", {value, part.scale});
    return append("QuantizeLinear", {value, config_.per_channel ? one() : part.scale, zero()});
  }

  std::string floats(const std::string& all, const Joined& part) {
    auto value = append("DequantizeLinear", {all, config_.per_channel ? one() : part.scale, zero()});
    if (config_.per_channel) value = append("Mul", {value, part.scale});
    return part.type == DataType::float32 ? value : cast(value, part.type);
  }

  std::string cast(const std::string& value, DataType to) {
    return append("Cast", {value}, {onnx::Attribute::of_int("to", static_cast<std::int64_t>(to))});
  }

  std::string append(const char* op_type, std::vector<std::string> inputs,
                     std::vector<onnx::Attribute> attributes = {}) {
    auto name = fresh(fmt::format("{}/{}", inputs.front(), op_type));
    nodes_.emplace_back(op_type, name, std::move(inputs), std::vector{name}, std::move(attributes));
    return name;
  }

  // Scales of one number stand in front of QuantizeLinear as they are, those of channels in a Div before it: it takes
  // a list along one axis alone.
  const std::string& one() {
    if (one_.empty()) one_ = add("cache_scale_one", {}, {1});
    return one_;
  }

  const std::string& zero() {
    if (!zero_.empty()) return zero_;
    zero_ = fresh("cache_zero_point");
    added_.push_back(onnx::make_tensor<std::int8_t>(zero_, DataType::int8, {}, std::vector<std::int8_t>{0}));
    return zero_;
  }

  std::string constant(const std::string& wanted, const graph::CachedAttention& cache,
                       const std::vector<float>& scales) {
    std::vector<std::int64_t> dims;
    if (!cache.is_joined()) dims = {1};
    if (config_.per_channel) dims = {1, cache.heads, 1, cache.head_size};
    return add(wanted, std::move(dims), scales);
  }

  // Gives back the type that it had.
  DataType retype(std::vector<onnx::ValueInfo>& values, const std::string& name,
                  const graph::CachedAttention& cache) const {
    const auto value = std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.name == name; });
    if (value == values.end()) throw internal_error("a cache that is no input and no output");
    auto shape = value->shape;
    if (config_.type == KvCacheType::int4 && shape && shape->size() == 4)
      shape->back() = {(cache.head_size + 1) / 2, {}};
    const auto type = value->type;
    *value = onnx::make_value_info(name, stored_type(config_.type), std::move(shape));
    return type;
  }

  const KvCacheConfig& config_;
  std::map<std::string, Joined> joined_;  // by value
  std::string one_, zero_;
};

}  // namespace

Emitted emit_kv_cache(FloatModel given, const Assignment& assignment) {
  auto& model = given.model;
  const auto& [config, scales] = assignment.cache;
  const auto caches = graph::cached_attentions(model);
  if (caches.size() != scales.size()) throw internal_error("scales of another number of layers");
  CacheEmitter emitter(model, config);
  for (std::size_t i = 0; i < caches.size(); ++i) emitter.emit(caches[i], scales[i]);
  emitter.finish();
  if (config.type == KvCacheType::float8e4m3fn && model.ir_version < kIrOfFloat8) model.set_ir_version(kIrOfFloat8);
  return {std::move(model), {}, {}};
}

}  // namespace detent::quantization
