#include "graph/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

#include "base/error.h"
#include "graph/index.h"

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
    if (found_.empty())
      throw bad_input(
          fmt::format("model '{}' has no GroupQueryAttention with past and present keys", model_.path.string()),
          "ONNX Runtime keeps a cache of fewer bits for this operator alone: leave out --kv-cache");
    number_layers();
    return std::move(found_);
  }

 private:
  static bool has_cache(const Node& node) {
    return !at(node.inputs(), kPastKey).empty() && !at(node.outputs(), kPresentKey).empty();
  }

  Error unfit(const Node& node, const std::string& why) const {
    return bad_input(fmt::format("model '{}': the cache of {} {}", model_.path.string(), node.label(), why),
                     "leave out --kv-cache");
  }

  CachedAttention cache_of(std::size_t n) const {
    const auto& node = model_.graph.nodes[n];
    const auto* granularity = node.attribute("k_quant_type");
    if (granularity != nullptr && granularity->as_string() != "NONE") throw unfit(node, "is quantized already");
    CachedAttention found{.node = n,
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

}  // namespace

std::vector<CachedAttention> cached_attentions(const onnx::Model& model) { return Finder(model).run(); }

}  // namespace detent::graph
