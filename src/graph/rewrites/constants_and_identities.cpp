#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/text.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/operators.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "onnx/bodies.h"

namespace detent::graph {
namespace {

// Results that products read as weights do not grow the file up to so many bytes.
constexpr std::uint64_t kSmallWeight = std::uint64_t{64} << 10;
constexpr std::uint64_t kGrowth = 4;

bool is_quantization(const onnx::Node& node) { return is_q_or_dq(node); }

// Whether the node moves integers that are dequantized where they are read. A result would be stored for each reader.
bool moves_integers(const onnx::Model& model, const Index& index, const onnx::Node& node) {
  const auto readers = node.outputs().empty() ? std::span<const int>() : index.consumers(node.outputs().front());
  return node.is("Transpose") && !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](int reader) {
           return is_quantization(model.graph.nodes[static_cast<std::size_t>(reader)]);
         });
}

bool can_be_computed(const onnx::Node& node) {
  return node.domain().empty() && !has_body(node) && node.bodies().empty() && !is_quantization(node) &&
         !node.is("Constant");
}

bool turns_matrix(const onnx::Node& node) {
  const auto* order = node.attribute("perm");
  return node.is("Transpose") && (order == nullptr || order->as_ints() == std::vector<std::int64_t>{1, 0});
}

// Constant nodes that weights of products or parameters of normalizations are made by.
std::vector<bool> make_weights(const onnx::Model& model, const Index& index, const std::vector<bool>& depends) {
  std::vector<bool> found(depends.size());
  for (std::size_t n = depends.size(); n-- > 0;) {
    if (depends[n]) continue;
    for (const auto& output : model.graph.nodes[n].outputs()) {
      for (const int reader : index.consumers(output)) {
        const auto r = static_cast<std::size_t>(reader);
        const auto& node = model.graph.nodes[r];
        const bool takes_weights = is_product(node) || has_trait(node, Trait::normalization);
        if (depends[r] ? takes_weights : found[r]) found[n] = true;
      }
    }
  }
  return found;
}

}  // namespace

std::vector<int> constant_nodes(const onnx::Model& model, const ValueTypes& types, std::uint64_t small) {
  const Index index(model);
  const auto depends = depends_on_input(model, index);
  const auto weights = make_weights(model, index, depends);
  std::unordered_map<std::string, std::uint64_t> known;  // constants and their bytes
  for (const auto& tensor : model.graph.initializers) known[tensor.name] = tensor.data.size();

  std::vector<int> chosen;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (depends[n] || !can_be_computed(node) || moves_integers(model, index, node)) continue;
    std::uint64_t inputs = 0;
    bool foldable = true;
    for (const auto& name : node.inputs()) {
      if (name.empty()) continue;
      foldable = foldable && known.contains(name);
      if (foldable) inputs += known.at(name);
    }
    std::uint64_t outputs = 0;
    for (const auto& name : node.outputs()) {
      const auto bytes = name.empty() ? std::uint64_t{0} : static_bytes(types, name);
      foldable = foldable && bytes.has_value() && !index.is_output(name);
      outputs += bytes.value_or(0);
    }
    if (!foldable || (outputs > (weights[n] ? std::max(kSmallWeight, small) : small) && outputs > kGrowth * inputs))
      continue;
    for (const auto& name : node.outputs()) known[name] = static_bytes(types, name).value_or(0);
    chosen.push_back(static_cast<int>(n));
  }
  return chosen;
}

std::vector<int> weight_makers(const onnx::Model& model, const std::set<std::string>& left) {
  const Index index(model);
  const auto depends = depends_on_input(model, index);
  const auto& nodes = model.graph.nodes;
  std::vector<bool> wanted(nodes.size());
  for (std::size_t n = nodes.size(); n-- > 0;) {
    if (depends[n] || !can_be_computed(nodes[n])) continue;
    for (const auto& output : nodes[n].outputs()) {
      for (const int reader : index.consumers(output)) {
        const auto r = static_cast<std::size_t>(reader);
        const bool is_weight =
            is_product(nodes[r]) || (has_trait(nodes[r], Trait::looks_up) && nodes[r].inputs()[0] == output);
        const bool takes = depends[r] ? is_weight && !turns_matrix(nodes[n]) && !left.contains(output)
                                      : wanted[r] || (turns_matrix(nodes[r]) && !left.contains(output));
        if (takes) wanted[n] = true;
      }
    }
  }
  std::vector<int> chosen;
  std::set<std::string_view> known;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (!wanted[n]) continue;
    const auto& inputs = nodes[n].inputs();
    const bool is_known = std::all_of(inputs.begin(), inputs.end(), [&](const auto& input) {
      return input.empty() || index.initializer(input) != kNone || known.contains(input);
    });
    if (!is_known) continue;
    known.insert(nodes[n].outputs().begin(), nodes[n].outputs().end());
    chosen.push_back(static_cast<int>(n));
  }
  return chosen;
}

void merge_equal_constants(onnx::Model& model, const std::vector<int>& nodes) {
  const Index index(model);
  std::unordered_map<std::string, const onnx::Node*> first;  // by what they compute
  std::unordered_map<std::string, std::string> same;
  for (const int n : nodes) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(n)];
    std::string key = node.op_type();
    for (const auto& input : node.inputs()) {
      const auto found = same.find(input);
      key += '\0' + (found == same.end() ? input : found->second);
    }
    for (const auto& a : node.attributes()) key.append("\0\0", 2).append(a.raw().view());
    const auto& outputs = node.outputs();
    const bool is_free =
        std::none_of(outputs.begin(), outputs.end(), [&](const auto& o) { return index.is_captured(o); });
    if (node.is("Identity") && is_free) {  // of a weight that others read as it is
      const auto& input = node.inputs()[0];
      const auto found = same.find(input);
      same[outputs[0]] = found == same.end() ? input : std::string(found->second);
      continue;
    }
    const auto [found, is_new] = first.try_emplace(std::move(key), &node);
    if (is_new || !is_free || found->second->outputs().size() != outputs.size()) continue;
    for (std::size_t o = 0; o < outputs.size(); ++o) same[outputs[o]] = found->second->outputs()[o];
  }
  if (same.empty()) return;
  for (auto& node : model.graph.nodes) {
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (const auto found = same.find(node.inputs()[i]); found != same.end()) node.set_input(i, found->second);
    }
  }
}

Notes replace_by_constants(onnx::Model& model, const std::vector<int>& nodes, std::vector<onnx::Tensor> results) {
  if (nodes.empty()) return {};
  const std::set<int> gone(nodes.begin(), nodes.end());
  std::vector<onnx::Node> kept;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    if (!gone.contains(static_cast<int>(n))) kept.push_back(std::move(model.graph.nodes[n]));
  }
  model.graph.nodes = std::move(kept);
  for (auto& tensor : results) model.graph.initializers.push_back(std::move(tensor));
  drop_unused_initializers(model);
  return {fmt::format("computed and replaced by their results: {}", count_with_noun(nodes.size(), "constant node"))};
}

namespace {

// The tensor that a Constant node stands for; nullopt for forms without a dense tensor (sparse values, strings).
std::optional<onnx::Tensor> constant_value(const onnx::Model& model, const onnx::Node& node) {
  using onnx::DataType;
  const std::string& name = node.outputs().front();
  if (const auto* a = node.attribute("value")) {
    auto tensor = read_attribute_tensor(model, node, *a);
    if (tensor.type == DataType::string || onnx::bits_of(tensor.type) == 0) return std::nullopt;
    tensor.name = name;
    tensor.raw = {};  // the message carries another name
    return tensor;
  }
  if (const auto* a = node.attribute("value_float")) {
    const float value = a->as_float();
    return onnx::make_tensor<float>(name, DataType::float32, {}, {&value, 1});
  }
  if (const auto* a = node.attribute("value_int")) {
    const std::int64_t value = a->as_int();
    return onnx::make_tensor<std::int64_t>(name, DataType::int64, {}, {&value, 1});
  }
  if (const auto* a = node.attribute("value_floats")) {
    const auto values = a->as_floats();
    return onnx::make_tensor<float>(name, DataType::float32, {static_cast<std::int64_t>(values.size())}, values);
  }
  if (const auto* a = node.attribute("value_ints")) {
    const auto values = a->as_ints();
    return onnx::make_tensor<std::int64_t>(name, DataType::int64, {static_cast<std::int64_t>(values.size())}, values);
  }
  return std::nullopt;
}

}  // namespace

Notes lift_constants(onnx::Model& model) {
  const Index index(model);
  std::vector<onnx::Node> kept;
  kept.reserve(model.graph.nodes.size());
  for (auto& node : model.graph.nodes) {
    const bool candidate =
        node.is("Constant") && node.outputs().size() == 1 && !index.is_output(node.outputs().front());
    auto tensor = candidate ? constant_value(model, node) : std::nullopt;
    if (tensor) {
      model.graph.initializers.push_back(std::move(*tensor));
    } else {
      kept.push_back(std::move(node));
    }
  }
  const std::size_t lifted = model.graph.nodes.size() - kept.size();
  model.graph.nodes = std::move(kept);
  if (lifted == 0) return {};
  return {fmt::format("made initializers: {}", count_with_noun(lifted, "Constant node"))};
}

Notes drop_initializer_inputs(onnx::Model& model) {
  const Index index(model);
  auto& inputs = model.graph.inputs;
  const auto dropped = std::erase_if(inputs, [&](const auto& input) { return index.initializer(input.name) != kNone; });
  if (dropped == 0) return {};
  // Before IR version 4 an initializer had to be an input; without the listing the file must say at least 4.
  if (model.ir_version < 4) model.set_ir_version(4);
  return {"constants now, and no graph inputs any more: " + count_with_noun(dropped, "initializer")};
}

void drop_unused_initializers(onnx::Model& model) {
  const Index index(model);
  std::vector<onnx::Tensor> kept;
  for (auto& tensor : model.graph.initializers) {
    if (!index.consumers(tensor.name).empty() || index.is_output(tensor.name) || index.is_input(tensor.name)) {
      kept.push_back(std::move(tensor));
    }
  }
  model.graph.initializers = std::move(kept);
}

namespace {

// What an If decides by, where that is known before anything runs.
class Conditions {
 public:
  explicit Conditions(const onnx::Model& model) : model_(model) {
    for (const auto& tensor : model.graph.initializers) constants_.emplace(tensor.name, &tensor);
    for (const auto& input : model.graph.inputs) constants_.erase(input.name);  // which a caller may give
    for (const auto& node : model.graph.nodes) {
      for (const auto& output : node.outputs()) makers_.emplace(output, &node);
    }
  }

  std::optional<bool> of(const std::string& value) const {
    constexpr int kMostSteps = 16;
    bool turned = false;
    auto name = value;
    for (int step = 0; step < kMostSteps; ++step) {
      if (const auto constant = constants_.find(name); constant != constants_.end())
        return known(*constant->second, turned);
      const auto maker = makers_.find(name);
      if (maker == makers_.end()) return std::nullopt;
      const auto& node = *maker->second;
      if (node.is("Constant") && node.attribute("value") != nullptr) {
        const auto tensor = constant_value(model_, node);
        return tensor ? known(*tensor, turned) : std::nullopt;
      }
      if (!node.is("Identity") && !node.is("Not")) return std::nullopt;
      turned = turned != node.is("Not");
      name = node.inputs()[0];
    }
    return std::nullopt;
  }

 private:
  static std::optional<bool> known(const onnx::Tensor& tensor, bool turned) {
    if (tensor.type != onnx::DataType::boolean || tensor.count() != 1 || tensor.data.is_produced()) return std::nullopt;
    return (tensor.data.bytes()[0] != std::byte{0}) != turned;
  }

  const onnx::Model& model_;
  std::unordered_map<std::string, const onnx::Tensor*> constants_;
  std::unordered_map<std::string, const onnx::Node*> makers_;
};

// The node comes to be one of the graph around the If, which gives on what the branch gives.
void put_in_place(onnx::Model& model, const onnx::Node& branching, bool condition, std::vector<bool>& gone,
                  std::vector<onnx::Node>& handing) {
  auto at = onnx::inputs_before_unfolding(model, branching);
  for (const int body : branching.bodies()) {
    const auto& held = model.bodies[static_cast<std::size_t>(body - 1)];
    const bool taken = held.attribute == (condition ? "then_branch" : "else_branch");
    for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
      auto& node = model.graph.nodes[n];
      if (!taken && node.body() != 0 && onnx::is_inside(model, node.body(), body)) gone[n] = true;
      if (taken && node.body() == body) node.set_body(branching.body());
    }
    for (auto& other : model.bodies) {
      if (taken && other.around == body) other.around = branching.body();
    }
    for (std::size_t o = 0; taken && o < held.outputs.size() && o < branching.outputs().size(); ++o) {
      const auto& output = branching.outputs()[o];
      if (output.empty()) continue;
      handing.emplace_back("Identity", branching.id() + "/" + output, std::vector{branching.inputs()[at + o]},
                           std::vector{output});
      handing.back().set_body(branching.body());
    }
    at += held.outputs.size();
  }
}

}  // namespace

void take_constant_branches(onnx::Model& model) {
  bool any = false;
  for (bool again = true; again;) {
    again = false;
    const Conditions conditions(model);
    for (std::size_t n = 0; n < model.graph.nodes.size() && !again; ++n) {
      const auto branching = model.graph.nodes[n];
      if (!branching.is("If") || branching.bodies().size() != 2) continue;
      const auto condition = conditions.of(branching.inputs()[0]);
      if (!condition) continue;
      std::vector<bool> gone(model.graph.nodes.size());
      std::vector<onnx::Node> handing, kept;
      put_in_place(model, branching, *condition, gone, handing);
      for (std::size_t k = 0; k < model.graph.nodes.size(); ++k) {
        if (k == n) std::move(handing.begin(), handing.end(), std::back_inserter(kept));
        if (k != n && !gone[k]) kept.push_back(std::move(model.graph.nodes[k]));
      }
      model.graph.nodes = std::move(kept);
      any = again = true;
    }
  }
  if (any) drop_unused_initializers(model);
}

namespace {

constexpr std::uint64_t kLeastBytesToShare = 1024;  // bytes; smaller tensors are stored as often as they are

// A sum over all bytes, each mixed with its place: of the tensor as it is, and of the same matrix transposed.
struct Fingerprint {
  std::uint64_t as_is = 0, transposed = 0;
};

std::uint64_t mixed(std::uint64_t place, std::byte value) {
  std::uint64_t x = (place << 8 | static_cast<std::uint64_t>(value)) + 0x9E3779B97F4A7C15U;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27) * 0x94D049BB133111EBU;
  return x ^ x >> 31;
}

// Runtimes turn integers and floats of 16 and 32 bits, no smaller floats.
bool is_turned(onnx::DataType type, bool turns_integers) {
  return onnx::bits_of(type) > 8 || (turns_integers && (type == onnx::DataType::int8 || type == onnx::DataType::uint8));
}

bool is_matrix(const onnx::Tensor& tensor) { return tensor.dims.size() == 2 && onnx::bits_of(tensor.type) >= 8; }

Fingerprint fingerprint_of(const onnx::Tensor& tensor) {
  Fingerprint print;
  const bool turns = is_matrix(tensor);
  const auto size = turns ? static_cast<std::uint64_t>(onnx::bits_of(tensor.type) / 8) : 1;
  const auto rows = turns ? static_cast<std::uint64_t>(tensor.dims[0]) : 1;
  const auto columns = turns ? static_cast<std::uint64_t>(tensor.dims[1]) : tensor.data.size();
  std::uint64_t row = 0, column = 0, part = 0;  // of the next byte
  tensor.data.write_to([&](std::span<const std::byte> bytes) {
    for (const auto value : bytes) {
      print.as_is += mixed((row * columns + column) * size + part, value);
      if (turns) print.transposed += mixed((column * rows + row) * size + part, value);
      if (++part < size) continue;
      part = 0;
      if (++column < columns) continue;
      column = 0;
      ++row;
    }
  });
  return print;
}

class Storing {
 public:
  Storing(onnx::Model& model, bool turns_integers) : model_(model), turns_integers_(turns_integers), index_(model) {}

  void run(const std::set<std::vector<std::int64_t>>& shapes) {
    std::map<std::pair<onnx::DataType, std::vector<std::int64_t>>, std::vector<std::size_t>> alike;
    auto& tensors = model_.graph.initializers;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto dims = tensors[i].dims;
      std::sort(dims.begin(), dims.end());
      if (shapes.contains(dims) && tensors[i].data.size() >= kLeastBytesToShare)
        alike[{tensors[i].type, dims}].push_back(i);
    }
    for (const auto& [kind, members] : alike) compare(members);
    if (gone_.empty()) return;
    for (auto& node : model_.graph.nodes) {
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (const auto found = same_.find(node.inputs()[i]); found != same_.end()) node.set_input(i, found->second);
      }
    }
    model_.graph.nodes.insert(model_.graph.nodes.begin(), turns_.begin(), turns_.end());
    std::erase_if(tensors, [&](const auto& tensor) { return gone_.contains(tensor.name); });
  }

 private:
  void compare(const std::vector<std::size_t>& members) {
    if (members.size() < 2) return;
    std::vector<std::pair<std::size_t, Fingerprint>> kept;
    for (const auto i : members) {
      const auto& tensor = model_.graph.initializers[i];
      const auto print = fingerprint_of(tensor);
      if (!replaced(tensor, print, kept)) kept.emplace_back(i, print);
    }
  }

  bool replaced(const onnx::Tensor& tensor, const Fingerprint& print,
                const std::vector<std::pair<std::size_t, Fingerprint>>& kept) {
    if (index_.is_output(tensor.name)) return false;
    for (const auto& [k, other] : kept) {
      const auto& stored = model_.graph.initializers[k];
      if (stored.dims == tensor.dims && other.as_is == print.as_is && !index_.is_captured(tensor.name)) {
        same_[tensor.name] = stored.name;
        gone_.insert(tensor.name);
        return true;
      }
      if (!is_matrix(tensor) || stored.dims[0] != tensor.dims[1] || other.transposed != print.as_is) continue;
      if (turns_dequantized(stored, tensor)) {
        gone_.insert(tensor.name);
        return true;
      }
      if (is_turned(tensor.type, turns_integers_)) {
        turns_.emplace_back("Transpose", index_.fresh_name(tensor.name + "_Transpose"), std::vector{stored.name},
                            std::vector{tensor.name}, std::vector{onnx::Attribute::of_ints("perm", {1, 0})});
        gone_.insert(tensor.name);
        return true;
      }
    }
    return false;
  }

  // Transpose takes no floats of 8 bits before opset 21, but what DequantizeLinear makes of them.
  bool turns_dequantized(const onnx::Tensor& stored, const onnx::Tensor& tensor) {
    const auto reader_of = [&](const onnx::Tensor& read) -> onnx::Node* {
      const auto readers = index_.consumers(read.name);
      if (readers.size() != 1 || index_.is_captured(read.name)) return nullptr;
      auto& node = model_.graph.nodes[static_cast<std::size_t>(readers.front())];
      return node.is("DequantizeLinear") && node.inputs().front() == read.name ? &node : nullptr;
    };
    if (is_turned(tensor.type, true)) return false;
    auto* source = reader_of(stored);
    auto* turned = reader_of(tensor);
    if (source == nullptr || turned == nullptr || source > turned) return false;
    const auto scale = [](const onnx::Node& node) { return std::span(node.inputs()).subspan(1); };
    if (!std::ranges::equal(scale(*source), scale(*turned))) return false;
    *turned = onnx::Node("Transpose", turned->name(), {source->outputs().front()}, {turned->outputs().front()},
                         {onnx::Attribute::of_ints("perm", {1, 0})});
    return true;
  }

  onnx::Model& model_;
  bool turns_integers_;
  Index index_;
  std::unordered_map<std::string, std::string> same_;
  std::set<std::string> gone_;
  std::vector<onnx::Node> turns_;
};

// Smaller results are not worth their nodes.
constexpr std::uint64_t kLeastBytesToRecompute = 1024;
constexpr std::uint64_t kShapes = 128;  // bytes that do not count, of shapes and axes

class Unfolding {
 public:
  Unfolding(onnx::Model& model, const FoldedConstants& folded) : model_(model), folded_(folded) {
    for (const auto& tensor : model.graph.initializers) stored_.emplace(tensor.name, is_untouched(tensor));
    for (const auto& node : model.graph.nodes) made_.insert(node.outputs().begin(), node.outputs().end());
    for (std::size_t n = 0; n < folded.nodes.size(); ++n) {
      for (const auto& output : folded.nodes[n].outputs()) maker_[output] = n;
    }
  }

  void run() {
    std::set<std::string> gone;
    for (const auto& tensor : model_.graph.initializers) {
      if (tensor.data.size() < kLeastBytesToRecompute || !maker_.contains(tensor.name) || !is_untouched(tensor))
        continue;
      Chain chain;
      if (!add_maker(tensor.name, chain) || chain.bytes > tensor.data.size() / 2 + kShapes) continue;
      gone.insert(tensor.name);
      nodes_.insert(chain.nodes.begin(), chain.nodes.end());
      for (const auto& name : chain.sources) {
        stored_.emplace(name, true);
        sources_.insert(name);
      }
    }
    if (gone.empty()) return;
    std::erase_if(model_.graph.initializers, [&](const auto& tensor) { return gone.contains(tensor.name); });
    for (const auto& name : sources_) model_.graph.initializers.push_back(folded_.sources.at(name));
    std::vector<onnx::Node> all;
    for (const auto n : nodes_) all.push_back(folded_.nodes[n]);
    std::move(model_.graph.nodes.begin(), model_.graph.nodes.end(), std::back_inserter(all));
    model_.graph.nodes = std::move(all);
  }

 private:
  // What makes a constant, and the bytes of its sources that the file does not have so far.
  struct Chain {
    std::set<std::size_t> nodes;
    std::set<std::string> sources;
    std::uint64_t bytes = 0;
  };

  // Neither scaled nor rounded since.
  bool is_untouched(const onnx::Tensor& tensor) const {
    if (const auto found = folded_.results.find(tensor.name); found != folded_.results.end())
      return found->second == tensor.data.identity();
    const auto found = folded_.sources.find(tensor.name);
    return found != folded_.sources.end() && found->second.data.identity() == tensor.data.identity();
  }

  bool add(const std::string& name, Chain& chain) const {
    if (name.empty()) return true;
    if (const auto found = stored_.find(name); found != stored_.end()) return found->second;
    if (maker_.contains(name)) return add_maker(name, chain);
    const auto source = folded_.sources.find(name);
    if (source == folded_.sources.end() || made_.contains(name)) return false;
    if (chain.sources.insert(name).second) chain.bytes += source->second.data.size();
    return true;
  }

  bool add_maker(const std::string& name, Chain& chain) const {
    const auto maker = maker_.at(name);
    const auto& node = folded_.nodes[maker];
    if (!is_on(node, List::in_all_opsets) || node.body() != 0 || node.outputs().size() != 1 || made_.contains(name))
      return false;
    if (!chain.nodes.insert(maker).second) return true;
    return std::all_of(node.inputs().begin(), node.inputs().end(),
                       [&](const auto& input) { return add(input, chain); });
  }

  onnx::Model& model_;
  const FoldedConstants& folded_;
  std::map<std::string, bool> stored_;  // whether it is as it was computed
  std::set<std::string> made_, sources_;
  std::map<std::string, std::size_t> maker_;
  std::set<std::size_t> nodes_;
};

}  // namespace

void deduplicate_constants(onnx::Model& model, const std::set<std::vector<std::int64_t>>& shapes, bool turns_integers) {
  if (!shapes.empty()) Storing(model, turns_integers).run(shapes);
}

void FoldedConstants::add(const onnx::Model& model, const std::vector<int>& which,
                          const std::vector<onnx::Tensor>& made) {
  std::set<std::string> read;
  for (const int n : which) {
    nodes.push_back(model.graph.nodes[static_cast<std::size_t>(n)]);
    read.insert(nodes.back().inputs().begin(), nodes.back().inputs().end());
  }
  for (const auto& tensor : made) results[tensor.name] = tensor.data.identity();
  for (const auto& tensor : model.graph.initializers) {
    if (read.contains(tensor.name)) sources.try_emplace(tensor.name, tensor);
  }
}

void recompute_constants_at_load(onnx::Model& model, const FoldedConstants& folded) {
  if (!folded.nodes.empty()) Unfolding(model, folded).run();
}

namespace {

bool passes_through(const onnx::Model& model, const Index& index, const onnx::Node& node) {
  if (node.is("Identity")) return true;
  if (!node.is("Dropout")) return false;
  const bool mask_used = node.outputs().size() > 1 && !node.outputs()[1].empty() &&
                         (!index.consumers(node.outputs()[1]).empty() || index.is_output(node.outputs()[1]));
  if (mask_used) return false;
  if (node.inputs().size() < 3 || node.inputs()[2].empty()) return true;  // training_mode defaults to false
  const int training = index.initializer(node.inputs()[2]);
  if (training == kNone) return false;
  const auto values = onnx::to_int64s(model.graph.initializers[static_cast<std::size_t>(training)]);
  return values.size() == 1 && values[0] == 0;
}

// Max with minus infinity and Min with infinity change nothing, whatever the shape of these numbers spreads to.
std::optional<std::string> input_of_idle_bound(const onnx::Model& model, const Index& index, const ValueTypes& types,
                                               const onnx::Node& node) {
  if ((!node.is("Max") && !node.is("Min")) || node.inputs().size() != 2) return std::nullopt;
  for (std::size_t i = 0; i < 2; ++i) {
    const int constant = index.initializer(node.inputs()[i]);
    const auto& other = node.inputs()[1 - i];
    const auto rank = rank_of(types, other);
    if (constant == kNone || !rank) continue;
    const auto& tensor = model.graph.initializers[static_cast<std::size_t>(constant)];
    if (tensor.type != onnx::DataType::float32 || tensor.count() != 1 || tensor.dims.size() > *rank) continue;
    const float bound = floats_of(tensor).front();
    if (std::isinf(bound) && std::signbit(bound) == node.is("Max")) return other;
  }
  return std::nullopt;
}

// Of Where(IsNaN(x), number, x), behind a Softmax that makes x: x.
std::optional<std::string> input_of_nan_guard(const onnx::Model& model, const Index& index, const onnx::Node& node) {
  if (!node.is("Where")) return std::nullopt;
  const auto& value = node.inputs()[2];
  const int asked = index.producer(node.inputs()[0]), maker = index.producer(value);
  const auto* number = any_float_constant(model, index, node.inputs()[1]);
  if (asked == kNone || maker == kNone || number == nullptr || number->count() != 1) return std::nullopt;
  const auto& question = model.graph.nodes[static_cast<std::size_t>(asked)];
  const bool asks = question.is("IsNaN") && question.inputs()[0] == value;
  if (!asks || !model.graph.nodes[static_cast<std::size_t>(maker)].is("Softmax")) return std::nullopt;
  return value;
}

// A product with a tensor of ones, or a sum with one of zeros, that is no larger than the other: that one.
std::optional<std::string> input_of_neutral_step(const onnx::Model& model, const Index& index, const ValueTypes& types,
                                                 const onnx::Node& node) {
  if (!node.is("Add") && !node.is("Mul")) return std::nullopt;
  const auto result = static_shape(types, node.outputs()[0]);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto* tensor = float32_constant(model, index, node.inputs()[i]);
    const auto& other = node.inputs()[1 - i];
    if (tensor == nullptr || !result || static_shape(types, other) != result) continue;
    const auto values = floats_of(*tensor);
    const float neutral = node.is("Mul") ? 1 : 0;
    if (std::all_of(values.begin(), values.end(), [=](float v) { return v == neutral; })) return other;
  }
  return std::nullopt;
}

// So many nodes, each of which hands its first input (or the one that `passed` gives) on, are passed by.
template <class Passed>
std::size_t bypass(onnx::Model& model, const Index& index, const Passed& passed) {
  std::unordered_map<std::string, std::string> alias;  // removed output -> the value that stands in for it
  std::vector<bool> removed(model.graph.nodes.size());
  const auto source = [&](std::string name) {
    while (alias.contains(name)) name = alias.at(name);
    return name;
  };
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (node.inputs().empty() || node.outputs().empty()) continue;
    const std::string& out = node.outputs().front();
    // Graph outputs keep their names, and the bodies of control flow are not rewritten.
    if (index.is_output(out) || index.is_captured(out)) continue;
    const auto value = passed(node);
    if (!value) continue;
    alias[out] = *value;
    removed[n] = true;
  }
  remove_nodes(model, removed);
  for (auto& node : model.graph.nodes) {
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (alias.contains(node.inputs()[i])) node.set_input(i, source(node.inputs()[i]));
    }
  }
  return alias.size();
}

}  // namespace

void resolve_cast_likes(onnx::Model& model, const ValueTypes& types) {
  for (auto& node : model.graph.nodes) {
    if (!node.is("CastLike") || node.inputs().size() != 2) continue;
    const auto type = type_of(model, types, node.inputs()[1]);
    if (type == onnx::DataType::undefined) continue;
    const bool same = type_of(model, types, node.inputs()[0]) == type;
    node.set_op_type(same ? "Identity" : "Cast");
    node.set_inputs({node.inputs()[0]});
    if (same) {
      node.remove_attribute("saturate");
    } else {
      node.set_attribute(onnx::Attribute::of_int("to", static_cast<std::int64_t>(type)));
    }
  }
}

Notes remove_identities(onnx::Model& model) {
  const Index index(model);
  const std::size_t removed = bypass(model, index, [&](const onnx::Node& node) {
    return passes_through(model, index, node) ? std::make_optional(node.inputs().front()) : std::nullopt;
  });
  if (removed == 0) return {};
  return {fmt::format("removed: {}", count_with_noun(removed, "Identity or Dropout node"))};
}

Notes remove_softmax_guards(onnx::Model& model) {
  const std::size_t removed = [&] {
    const Index index(model);
    return bypass(model, index, [&](const onnx::Node& node) { return input_of_nan_guard(model, index, node); });
  }();
  if (removed == 0) return {};
  const Index index(model);
  std::vector<bool> unread(model.graph.nodes.size());
  for (std::size_t n = 0; n < unread.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    const auto& out = node.outputs().front();
    unread[n] = node.is("IsNaN") && index.consumers(out).empty() && !index.is_output(out);
  }
  remove_nodes(model, unread);
  drop_unused_initializers(model);
  return {"removed: " + count_with_noun(removed, "question") +
          " whether a Softmax gives NaN, which integers do not hold"};
}

Notes remove_neutral_arithmetic(onnx::Model& model, const ValueTypes& types) {
  const Index index(model);
  const std::size_t removed = bypass(model, index, [&](const onnx::Node& node) -> std::optional<std::string> {
    if (auto passed = input_of_idle_bound(model, index, types, node)) return passed;
    if (auto passed = input_of_neutral_step(model, index, types, node)) return passed;
    const auto step = scalar_step(model, index, types, node);
    return step && step->number == (step->multiplies ? 1 : 0) ? std::make_optional(step->value) : std::nullopt;
  });
  if (removed == 0) return {};
  drop_unused_initializers(model);
  return {"removed: " + count_with_noun(removed, "node") +
          " (multiplications by 1, additions of 0, bounds at infinity)"};
}

}  // namespace detent::graph
