#include "graph/patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/text.h"
#include "graph/constants.h"
#include "graph/operators.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "onnx/packed_numbers.h"
#include "onnx/write.h"

namespace detent::graph {
namespace {

using onnx::Node;

// Of GroupQueryAttention.
constexpr std::size_t kKey = 1, kPastKey = 3, kPastValue = 4, kCosines = 7;
constexpr std::size_t kPresentKey = 1, kPresentValue = 2;

const std::string& at(const std::vector<std::string>& names, std::size_t n) {
  static const std::string kNothing;
  return n < names.size() ? names[n] : kNothing;
}

// The first number in a name.
std::int64_t number_in(const std::string& name, std::int64_t otherwise) {
  const auto digit = std::find_if(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  if (digit == name.end()) return otherwise;
  std::int64_t number = otherwise;
  std::from_chars(&*digit, name.data() + name.size(), number);
  return number;
}

const onnx::ValueInfo* named(const std::vector<onnx::ValueInfo>& values, const std::string& name) {
  const auto found = std::find_if(values.begin(), values.end(), [&](const auto& value) { return value.name == name; });
  return found == values.end() ? nullptr : &*found;
}

bool is_float(onnx::DataType type) {
  return type == onnx::DataType::float32 || type == onnx::DataType::float16 || type == onnx::DataType::bfloat16;
}

class Finder {
 public:
  explicit Finder(const onnx::Model& model) : model_(model), index_(model) {}

  std::vector<CachedAttention> run() {
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      const auto& node = model_.graph.nodes[n];
      if (node.op_type() == "GroupQueryAttention" && has_cache(node)) found_.push_back(cache_of(n));
    }
    if (found_.empty()) find_joined();
    if (found_.empty())
      throw bad_input(fmt::format("model '{}' has no attention with past and present keys: no GroupQueryAttention, and "
                                  "no Concat of an input and new keys whose result is an output",
                                  model_.path.string()),
                      "leave out --kv-cache");
    number_layers();
    return std::move(found_);
  }

 private:
  static bool has_cache(const Node& node) {
    return !at(node.inputs(), kPastKey).empty() && !at(node.outputs(), kPresentKey).empty();
  }

  Error unfit(const std::string& cache, const std::string& why) const {
    return bad_input(fmt::format("model '{}': the cache {} {}", model_.path.string(), cache, why),
                     "leave out --kv-cache");
  }
  Error unfit(const Node& node, const std::string& why) const { return unfit("of " + node.label(), why); }

  CachedAttention cache_of(std::size_t n) const {
    const auto& node = model_.graph.nodes[n];
    const auto* granularity = node.attribute("k_quant_type");
    if (granularity != nullptr && granularity->as_string() != "NONE") throw unfit(node, "is quantized already");
    CachedAttention found{.key_node = n,
                          .value_node = n,
                          .layer = -1,
                          .past_key = at(node.inputs(), kPastKey),
                          .past_value = at(node.inputs(), kPastValue),
                          .present_key = at(node.outputs(), kPresentKey),
                          .present_value = at(node.outputs(), kPresentValue)};
    for (const auto& past : {found.past_key, found.past_value}) check_past(node, past);
    for (const auto& present : {found.present_key, found.present_value}) check_present(node, present);
    found.layer = number_in(found.past_key, -1);
    found.heads = node.int_or("kv_num_heads", 0);
    found.head_size = head_size_of(node, found);
    if (found.heads <= 0 || found.head_size <= 0) throw unfit(node, "does not tell how long its heads are");
    find_turned(node, found);
    return found;
  }

  // Beside the attention, only what asks for its shape.
  void check_past(const Node& node, const std::string& past) const {
    const auto* input = named(model_.graph.inputs, past);
    if (input == nullptr || index_.is_output(past) || index_.is_captured(past))
      throw unfit(node, fmt::format("comes from '{}', which is no input of the model alone", past));
    if (!is_float(input->type)) throw unfit(node, fmt::format("'{}' is no float already", past));
    for (const int reader : index_.consumers(past)) {
      const auto& other = model_.graph.nodes[static_cast<std::size_t>(reader)];
      if (&other != &node && !other.is("Shape"))
        throw unfit(node, fmt::format("'{}' is also read by {}", past, other.label()));
    }
  }

  void check_present(const Node& node, const std::string& present) const {
    if (!index_.is_output(present))
      throw unfit(node, fmt::format("goes to '{}', which is no output of the model", present));
    if (!index_.consumers(present).empty()) throw unfit(node, fmt::format("'{}' is read inside the model", present));
  }

  std::int64_t head_size_of(const Node& node, const CachedAttention& found) const {
    for (const auto* value :
         {named(model_.graph.inputs, found.past_key), named(model_.graph.outputs, found.present_key)}) {
      if (value != nullptr && value->shape && value->shape->size() == 4 && value->shape->back().is_static())
        return value->shape->back().value;
    }
    const auto half = cosines_of(node);
    return half > 0 ? 2 * half : 0;
  }

  // Columns of the operator's table of cosines; 0: unknown.
  std::int64_t cosines_of(const Node& node) const {
    const int table = index_.initializer(at(node.inputs(), kCosines));
    if (table == kNone) return 0;
    const auto& dims = model_.graph.initializers[static_cast<std::size_t>(table)].dims;
    return dims.size() == 2 ? dims[1] : 0;
  }

  // By the operator itself, or by a RotaryEmbedding before it.
  void find_turned(const Node& node, CachedAttention& found) const {
    const Node* turning = node.int_or("do_rotary", 0) != 0 ? &node : nullptr;
    std::int64_t rotated = turning != nullptr ? 2 * cosines_of(node) : 0;
    if (turning == nullptr) {
      turning = rotary_before(at(node.inputs(), kKey));
      if (turning == nullptr) return;
      rotated = turning->int_or("rotary_embedding_dim", 0);
    }
    const bool is_node = turning == &node;
    found.neighbours = turning->int_or(is_node ? "rotary_interleaved" : "interleaved", 0) != 0;
    found.rotated = rotated > 0 && rotated <= found.head_size ? rotated : found.head_size;
    found.rotated -= found.rotated % 2;
  }

  const Node* rotary_before(const std::string& key) const {
    std::string name = key;
    for (int step = 0; step < 4; ++step) {
      const int maker = index_.producer(name);
      if (maker == kNone) return nullptr;
      const auto& made = model_.graph.nodes[static_cast<std::size_t>(maker)];
      if (made.op_type() == "RotaryEmbedding") return &made;
      if (made.op_type() != "Reshape" && made.op_type() != "Transpose") return nullptr;
      name = at(made.inputs(), 0);
    }
    return nullptr;
  }

  // A Concat of a graph input, which holds earlier keys or values, and of new ones.
  struct Joined {
    std::size_t node = 0;
    std::int64_t layer = -1;
    const onnx::ValueInfo* past = nullptr;
    std::string present;
  };

  // Keys come before values in the inputs of all exporters.
  void find_joined() {
    std::vector<Joined> all;
    for (const auto& input : model_.graph.inputs) {
      const bool may_be = input.shape && input.shape->size() == 4 && is_float(input.type);
      if (may_be && (input.name.starts_with("past") || is_joined(input))) all.push_back(joined(input));
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.layer < b.layer; });
    for (std::size_t i = 0; i < all.size(); i += 2) {
      const auto& keys = all[i];
      if (i + 1 == all.size() || all[i + 1].layer != keys.layer)
        throw unfit(fmt::format("'{}'", keys.past->name), "has no second input of its layer: keys go with values");
      found_.push_back(pair(keys, all[i + 1]));
    }
  }

  CachedAttention pair(const Joined& keys, const Joined& values) const {
    const auto& shape = *keys.past->shape;
    CachedAttention found{.key_node = keys.node,
                          .value_node = values.node,
                          .layer = keys.layer,
                          .past_key = keys.past->name,
                          .past_value = values.past->name,
                          .present_key = keys.present,
                          .present_value = values.present,
                          .heads = shape[1].value,
                          .head_size = shape[3].value};
    const auto& inputs = model_.graph.nodes[keys.node].inputs();
    const bool is_rotated = std::any_of(inputs.begin(), inputs.end(), [&](const auto& key) {
      return key != found.past_key && (rotary_before(key) != nullptr || is_sum_of_products(key));
    });
    if (is_rotated) found.rotated = found.head_size - found.head_size % 2;
    return found;
  }

  // x · cos + turned x · sin
  bool is_sum_of_products(const std::string& value) const {
    const int sum = index_.producer(value);
    if (sum == kNone || !model_.graph.nodes[static_cast<std::size_t>(sum)].is("Add")) return false;
    const auto& terms = model_.graph.nodes[static_cast<std::size_t>(sum)].inputs();
    return std::all_of(terms.begin(), terms.end(), [&](const auto& term) {
      const int maker = index_.producer(term);
      return maker != kNone && model_.graph.nodes[static_cast<std::size_t>(maker)].is("Mul");
    });
  }

  bool is_joined(const onnx::ValueInfo& input) const {
    const auto& readers = index_.consumers(input.name);
    return std::any_of(readers.begin(), readers.end(), [&](int reader) {
      const auto& node = model_.graph.nodes[static_cast<std::size_t>(reader)];
      return node.is("Concat") && !present_of(node.outputs()[0]).empty();
    });
  }

  // The graph output that a value is, itself or by way of an Identity; empty: none.
  std::string present_of(const std::string& value) const {
    if (index_.is_output(value)) return value;
    for (const int reader : index_.consumers(value)) {
      const auto& node = model_.graph.nodes[static_cast<std::size_t>(reader)];
      if (node.is("Identity") && index_.is_output(node.outputs()[0])) return node.outputs()[0];
    }
    return {};
  }

  Joined joined(const onnx::ValueInfo& input) const {
    const auto cache = fmt::format("'{}'", input.name);
    if (index_.is_output(input.name) || index_.is_captured(input.name))
      throw unfit(cache, "is also an output, or read in a body");
    Joined found{0, number_in(input.name, -1), &input, {}};
    for (const int reader : index_.consumers(input.name)) {
      const auto n = static_cast<std::size_t>(reader);
      const auto& node = model_.graph.nodes[n];
      if (node.is("Shape")) continue;
      const auto axis = node.int_or("axis", 0);
      if (!node.is("Concat") || !found.present.empty() || (axis != 2 && axis != -2))
        throw unfit(cache, fmt::format("is read by {}: not by one Concat of its third axis alone", node.label()));
      found.node = n;
      found.present = present_of(node.outputs()[0]);
      if (found.present.empty() || index_.is_captured(node.outputs()[0]))
        throw unfit(cache, fmt::format("goes to {}, whose result is no output of the model", node.label()));
    }
    if (found.present.empty()) throw unfit(cache, "has no reader");
    if (!(*input.shape)[1].is_static() || !(*input.shape)[3].is_static())
      throw unfit(cache, "does not tell how many heads it has, and how long they are");
    return found;
  }

  // Names without numbers, or with the same, count for nothing.
  void number_layers() {
    std::set<std::int64_t> numbers;
    for (const auto& layer : found_) numbers.insert(layer.layer);
    if (numbers.size() == found_.size() && *numbers.begin() >= 0) return;
    for (std::size_t i = 0; i < found_.size(); ++i) found_[i].layer = static_cast<std::int64_t>(i);
  }

  const onnx::Model& model_;
  Index index_;
  std::vector<CachedAttention> found_;
};

bool moves(const onnx::Node& node) { return has_trait(node, Trait::rearranges) || is_on(node, List::moves_scores); }

// A Cast to a type of floats.
bool makes_floats(const onnx::Node& node) {
  static constexpr onnx::DataType kFloats[] = {onnx::DataType::float32, onnx::DataType::float16,
                                               onnx::DataType::bfloat16, onnx::DataType::float64};
  const auto* to = node.attribute("to");
  return node.is("Cast") && to != nullptr &&
         std::find(std::begin(kFloats), std::end(kFloats), static_cast<onnx::DataType>(to->as_int())) !=
             std::end(kFloats);
}

// 0 and 1, as far as the graph tells: what comes from a Cast, or 1 minus that.
bool is_zero_or_one(const onnx::Model& model, const Index& index, const std::string& value) {
  const int producer = index.producer(value);
  if (producer == kNone) return index.initializer(value) == kNone;
  const auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
  if (node.is("Cast")) return true;
  if (moves(node)) return is_zero_or_one(model, index, node.inputs()[0]);
  return node.is("Sub") && index.initializer(node.inputs()[0]) != kNone &&
         is_zero_or_one(model, index, node.inputs()[1]);
}

// What a node that makes scores reads as such.
std::vector<std::string> parts_of(const onnx::Model& model, const Index& index, const onnx::Node& node) {
  const auto& inputs = node.inputs();
  if (node.is("Add")) return {inputs[0], inputs[1]};
  if (node.is("Where")) return {inputs[1], inputs[2]};
  if (is_on(node, List::scatters)) return {inputs[0], inputs[2]};
  if (node.is("Concat") || node.is("Max")) return inputs;
  if (moves(node) || makes_floats(node)) return {inputs[0]};
  if (node.is("Mul")) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (is_zero_or_one(model, index, inputs[1 - i])) return {inputs[i]};
    }
  }
  const auto step = any_float_constant_step(model, index, node);
  if (!step || !step->multiplies) return {};
  const auto values = step->values();
  const bool is_scale = values.size() == 1 && values.front() > 0;
  return is_scale ? std::vector{step->value} : std::vector<std::string>();
}

template <class Element>
std::vector<std::byte> bytes_of(Element element) {
  const auto bytes = std::as_bytes(std::span(&element, 1));
  return {bytes.begin(), bytes.end()};
}

// kMask as an element of a type of floats; the nearest in bfloat16 is -9984.
std::vector<std::byte> mask_in(onnx::DataType type) {
  switch (type) {
    case onnx::DataType::float16: return bytes_of(onnx::to_float16(kMask));
    case onnx::DataType::bfloat16: return bytes_of(onnx::to_bfloat16(kMask));
    case onnx::DataType::float64: return bytes_of(double{kMask});
    default: return bytes_of(kMask);
  }
}

// The tensor with no element below kMask, or nothing where it has none.
std::optional<onnx::Tensor> clamped(const onnx::Tensor& tensor, const Store& store) {
  const auto values = onnx::to_doubles(tensor);
  if (std::none_of(values.begin(), values.end(), [](double v) { return v < kMask; })) return std::nullopt;
  const auto mask = mask_in(tensor.type);
  const auto given = tensor.data.bytes();
  std::vector<std::byte> bytes(given.begin(), given.end());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < kMask) std::copy(mask.begin(), mask.end(), bytes.data() + i * mask.size());
  }
  return onnx::Tensor{tensor.name, tensor.type, tensor.dims, store(std::move(bytes)), {}, false};
}

// A constant that scores are made of.
bool clamp_constant(onnx::Model& model, const Index& index, const std::string& name, const Store& store) {
  const auto* tensor = any_float_constant(model, index, name);
  auto changed = tensor == nullptr ? std::nullopt : clamped(*tensor, store);
  if (!changed) return false;
  model.graph.initializers[static_cast<std::size_t>(index.initializer(name))] = std::move(*changed);
  return true;
}

// The number that a value of a computed shape is filled with.
bool clamp_filling(onnx::Model& model, const Index& index, const std::string& name) {
  const int producer = index.producer(name);
  if (producer == kNone) return false;
  auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
  const auto number = constant_of_shape_value(model, node);
  const auto* value = node.attribute("value");
  if (!number || value == nullptr) return false;
  const auto in_memory = [](std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); };
  const auto changed = clamped(onnx::read_attribute_tensor(model, node, *value), in_memory);
  if (!changed) return false;
  node.set_attribute(onnx::Attribute::of_messages("value", onnx::Attribute::Kind::t, {onnx::encode_tensor(*changed)}));
  return true;
}

}  // namespace

std::vector<CachedAttention> cached_attentions(const onnx::Model& model) { return Finder(model).run(); }

std::vector<std::string> attention_scores(const onnx::Model& model, const Index& index) {
  std::unordered_set<std::string> found;
  std::vector<std::string> order;
  const auto reads_scores = [&](const onnx::Node& node, const std::string& value) {
    if (node.is("Softmax")) return true;
    const auto parts = parts_of(model, index, node);
    return std::find(parts.begin(), parts.end(), value) != parts.end() &&
           std::all_of(node.outputs().begin(), node.outputs().end(), [&](const auto& o) { return found.contains(o); });
  };
  const auto consider = [&](const std::string& value) {
    if (value.empty() || found.contains(value) || index.is_output(value) || index.is_captured(value)) return;
    const auto readers = index.consumers(value);
    const bool all = std::all_of(readers.begin(), readers.end(), [&](int reader) {
      return reads_scores(model.graph.nodes[static_cast<std::size_t>(reader)], value);
    });
    if (!all || !found.insert(value).second) return;
    order.push_back(value);
  };
  for (std::size_t n = model.graph.nodes.size(); n-- > 0;) {
    const auto& node = model.graph.nodes[n];
    if (node.is("Softmax")) {
      consider(node.inputs()[0]);
    } else if (std::any_of(node.outputs().begin(), node.outputs().end(),
                           [&](const auto& o) { return found.contains(o); })) {
      for (const auto& part : parts_of(model, index, node)) consider(part);
    }
  }
  return order;
}

Notes clamp_masks(onnx::Model& model, const Store& store) {
  const Index index(model);
  std::size_t clamped = 0;
  for (const auto& name : attention_scores(model, index)) {
    if (clamp_constant(model, index, name, store) || clamp_filling(model, index, name)) ++clamped;
  }
  if (clamped == 0) return {};
  return {fmt::format("clamped to {:.0f}, where a Softmax gives 0 as well: {} that mask{} scores", kMask,
                      count_with_noun(clamped, "constant"), clamped == 1 ? "s" : "")};
}

namespace {

class FrontEnd {
 public:
  FrontEnd(const onnx::Model& model, const Index& index, FrontEnds which)
      : model_(model), index_(index), which_(which), varies_(depends_on_input(model, index)) {
    for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) visit(n);
  }

  std::set<std::size_t> take() { return std::move(nodes_); }

 private:
  struct Value {
    bool has_product = false;  // made by way of one
    bool is_bounded = false;   // and cut off at a bound behind it
  };

  void visit(std::size_t n) {
    const auto& node = model_.graph.nodes[n];
    if (!varies_[n]) return;
    Value value;
    bool are_sizes = true;
    for (const auto& input : node.inputs()) {
      if (input.empty() || is_constant(input) || sizes_.contains(input)) continue;
      are_sizes = false;
      if (index_.is_input(input)) continue;
      const auto found = values_.find(input);
      if (found == values_.end()) return;
      value.has_product |= found->second.has_product;
      value.is_bounded |= found->second.is_bounded;
    }
    if (are_sizes || is_on(node, List::measures)) {
      sizes_.insert(node.outputs().begin(), node.outputs().end());
      return;
    }
    const bool ends = value.has_product && compresses(node);
    if (ends) collect(n);
    if (is_product(node)) {
      if (value.is_bounded) return;
      value.has_product = true;
    } else if (is_on(node, List::bounds)) {
      value.is_bounded |= value.has_product;
    } else if (!node.is("Sqrt") && (ends || !(sums_or_moves(node) || (cuts_frames(node) && !value.has_product)))) {
      return;
    }
    for (const auto& output : node.outputs()) values_[output] = value;
  }

  bool is_constant(const std::string& value) const {
    const int producer = index_.producer(value);
    return index_.initializer(value) != kNone || (producer != kNone && !varies_[static_cast<std::size_t>(producer)]);
  }

  static bool sums_or_moves(const onnx::Node& node) {
    const auto& traits = traits_of(node);
    return is_on(node, List::sums) || traits.counting == Counting::moves || traits.counting == Counting::free ||
           traits.is(Trait::rearranges);
  }

  // A loop in front of all products.
  static bool cuts_frames(const onnx::Node& node) { return !node.bodies().empty(); }

  // A square root does not end one: a speech detector keeps its decisions with what leads to it in integers.
  bool compresses(const onnx::Node& node) const {
    const bool all = which_ == FrontEnds::all;
    if (is_on(node, List::logarithms) || (all && is_on(node, List::divides))) return true;
    if (node.is("Div")) return all && !is_constant(node.inputs()[1]);
    if (!node.is("Pow")) return false;
    if (!is_constant(node.inputs()[1])) return all;
    const auto* exponents = any_float_constant(model_, index_, node.inputs()[1]);
    if (exponents == nullptr) return false;  // whole numbers, or made by nodes
    const auto values = floats_of(*exponents);
    return std::any_of(values.begin(), values.end(),
                       [](float exponent) { return exponent < 1 && std::abs(exponent) != 0.5F; });
  }

  void collect(std::size_t end) {
    std::vector<std::size_t> pending{end};
    while (!pending.empty()) {
      const std::size_t n = pending.back();
      pending.pop_back();
      if (!nodes_.insert(n).second) continue;
      for (const auto& input : model_.graph.nodes[n].inputs()) {
        if (values_.contains(input)) pending.push_back(static_cast<std::size_t>(index_.producer(input)));
      }
    }
  }

  const onnx::Model& model_;
  const Index& index_;
  FrontEnds which_;
  std::vector<bool> varies_;
  std::unordered_map<std::string, Value> values_;  // that belong to a front end
  std::unordered_set<std::string> sizes_;          // and what is made from the shapes of values
  std::set<std::size_t> nodes_;
};

}  // namespace

std::set<std::size_t> front_end(const onnx::Model& model, const Index& index, FrontEnds which) {
  return FrontEnd(model, index, which).take();
}

}  // namespace detent::graph
