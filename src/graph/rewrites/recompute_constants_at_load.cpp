#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

// Smaller results are not worth their nodes.
constexpr std::uint64_t kWorthIt = 1024;
constexpr std::uint64_t kShapes = 128;  // bytes that do not count, of shapes and axes

// What is written the same way in every opset that detent writes.
bool is_the_same_in_all_opsets(const onnx::Node& node) {
  constexpr std::array<std::string_view, 12> kTypes{"Cast", "Transpose", "Reshape", "Identity", "Expand", "Concat",
                                                    "Mul",  "Add",       "Sub",     "Div",      "Sin",    "Cos"};
  return std::find(kTypes.begin(), kTypes.end(), node.op_type()) != kTypes.end() && node.domain().empty();
}

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
      if (tensor.data.size() < kWorthIt || !maker_.contains(tensor.name) || !is_untouched(tensor)) continue;
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
    if (!is_the_same_in_all_opsets(node) || node.body() != 0 || node.outputs().size() != 1 || made_.contains(name))
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

}  // namespace detent::graph
