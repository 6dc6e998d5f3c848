#include "graph/liveness.h"

#include <algorithm>
#include <utility>

#include "graph/traits.h"

namespace detent::graph {
namespace {

// Blocks of memory, each shared by the values that live in it one after another or under several names.
class Blocks {
 public:
  Blocks(const onnx::Model& model, const Index& index, const ValueTypes& types)
      : model_(model), index_(index), types_(types), noted_(model.graph.nodes.size()) {}

  std::optional<Liveness> walk(const Workspace& workspace) {
    for (const auto& input : model_.graph.inputs) {
      if (index_.initializer(input.name) == kNone && !allocate_block(input.name)) return std::nullopt;
    }
    Liveness result;
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      const auto& node = model_.graph.nodes[n];
      for (const auto& name : node.outputs()) {
        if (!name.empty() && !share(node, n, name) && !allocate_block(name)) return std::nullopt;
      }
      const std::uint64_t now = alive_ + (workspace ? workspace(node, keeps_first_input(node, n)) : 0);
      if (now > result.peak_bytes) result = {now, n};
      for (const std::size_t block : dying_at(n)) alive_ -= bytes_[block];
    }
    return result;
  }

  Lifetimes take() { return {std::move(block_of_), std::move(bytes_), std::move(end_)}; }

 private:
  static constexpr std::size_t kEnd = Lifetimes::kEnd;

  std::size_t last_use(const std::string& value, std::size_t made_at) const {
    if (index_.is_output(value)) return kEnd;
    const auto readers = index_.consumers(value);
    return readers.empty() ? made_at : static_cast<std::size_t>(readers.back());
  }

  bool allocate_block(const std::string& value) {
    const auto bytes = static_bytes(types_, value);
    if (!bytes) return false;
    const int producer = index_.producer(value);
    alive_ += *bytes;
    block_of_[value] = bytes_.size();
    bytes_.push_back(*bytes);
    end_.push_back(kEnd);
    set_end(end_.size() - 1, last_use(value, producer == kNone ? 0 : static_cast<std::size_t>(producer)));
    return true;
  }

  // Puts the value into the block of an input where that is what runtimes do.
  bool share(const onnx::Node& node, std::size_t n, const std::string& value) {
    if (&value != &node.outputs().front()) return false;
    const auto bytes = static_bytes(types_, value);
    for (const auto& input : node.inputs()) {
      const auto found = block_of_.find(input);
      if (found == block_of_.end()) continue;
      const std::size_t block = found->second;
      const bool overwrites = has_trait(node, Trait::element_wise) && end_[block] == n && bytes &&
                              *bytes == bytes_[block] && index_.producer(input) != kNone && !is_measured(value);
      if (!has_trait(node, Trait::renames) && !overwrites) continue;
      block_of_[value] = block;
      const std::size_t until = last_use(value, n);
      if (end_[block] != kEnd) set_end(block, until == kEnd ? kEnd : std::max(end_[block], until));
      return true;
    }
    return false;
  }

  bool is_measured(const std::string& value) const {
    const auto& shape = types_.at(value).shape;
    return std::any_of(shape->begin(), shape->end(), [](const auto& d) { return d.symbol == kMeasured; });
  }

  bool keeps_first_input(const onnx::Node& node, std::size_t n) const {
    if (node.inputs().empty()) return false;
    const auto found = block_of_.find(node.inputs().front());
    return found != block_of_.end() && end_[found->second] != n;
  }

  // A block's end may have moved on since it was noted.
  std::vector<std::size_t> dying_at(std::size_t n) const {
    std::vector<std::size_t> dying;
    for (const auto block : noted_[n]) {
      if (end_[block] == n) dying.push_back(block);
    }
    return dying;
  }

  void set_end(std::size_t block, std::size_t end) {
    if (end_[block] == end) return;
    end_[block] = end;
    if (end != kEnd) noted_[end].push_back(block);
  }

  const onnx::Model& model_;
  const Index& index_;
  const ValueTypes& types_;
  std::unordered_map<std::string, std::size_t> block_of_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::size_t> end_;                 // of each block: the last node that uses it
  std::vector<std::vector<std::size_t>> noted_;  // blocks by a node that was their end at some time
  std::uint64_t alive_ = 0;
};

}  // namespace

std::optional<Liveness> liveness(const onnx::Model& model, const Index& index, const ValueTypes& types,
                                 const Workspace& workspace) {
  return Blocks(model, index, types).walk(workspace);
}

std::optional<Lifetimes> lifetimes(const onnx::Model& model, const Index& index, const ValueTypes& types) {
  Blocks blocks(model, index, types);
  if (!blocks.walk({})) return std::nullopt;
  return blocks.take();
}

}  // namespace detent::graph
