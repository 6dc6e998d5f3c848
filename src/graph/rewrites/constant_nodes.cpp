#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>

#include "base/bytes.h"
#include "graph/bodies.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"

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
        const bool is_weight = is_product(nodes[r]) || (nodes[r].is("Gather") && nodes[r].inputs()[0] == output);
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
    const auto [found, is_new] = first.try_emplace(std::move(key), &node);
    const bool is_free =
        std::none_of(outputs.begin(), outputs.end(), [&](const auto& o) { return index.is_captured(o); });
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

}  // namespace detent::graph
