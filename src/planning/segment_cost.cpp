#include "planning/segment_cost.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "graph/liveness.h"
#include "planning/parts.h"

namespace detent::planning {
namespace {

constexpr int kNever = -1;

// First come, first numbered.
template <class Key>
std::size_t number_of(std::unordered_map<Key, std::size_t>& numbers, const Key& key) {
  return numbers.emplace(key, numbers.size()).first->second;
}

}  // namespace

std::optional<SegmentWalk> SegmentWalk::make(const onnx::Model& model, const graph::Index& index,
                                             const graph::ValueTypes& types, const std::vector<std::string>& observed,
                                             const Circumstances& circumstances) {
  auto lives = graph::lifetimes(model, index, types);
  if (!lives) return std::nullopt;
  SegmentWalk walk;
  walk.workers_ = circumstances.workers;
  walk.fixed_ = kProcess + statistics_bytes(circumstances) + circumstances.beside;
  const auto numbers = walk.add_values(index, types, *lives);
  walk.add_nodes(model, index, types, observed, *lives, numbers);
  walk.block_bytes_ = std::move(lives->bytes);
  walk.block_end_ = std::move(lives->end);
  walk.sum_border();
  walk.seen_value_.assign(walk.values_.size(), kNever);
  walk.seen_block_.assign(walk.block_bytes_.size(), kNever);
  walk.seen_weight_.assign(model.graph.initializers.size(), kNever);
  return walk;
}

SegmentWalk::Numbers SegmentWalk::add_values(const graph::Index& index, const graph::ValueTypes& types,
                                             const graph::Lifetimes& lives) {
  Numbers numbers;
  for (const auto& [name, block] : lives.block_of) {
    const std::size_t v = number_of(numbers, name);
    values_.resize(std::max(values_.size(), v + 1));
    const auto readers = index.consumers(name);
    values_[v] = {graph::static_bytes(types, name).value_or(0), index.producer(name),
                  readers.empty() ? kNever : readers.back(), block};
  }
  return numbers;
}

void SegmentWalk::add_nodes(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                            const std::vector<std::string>& observed, const graph::Lifetimes& lives,
                            const Numbers& numbers) {
  const bool blocked = runs_in_blocks(model);
  const auto workspace = workspace_of(model, index, types, blocked);
  const std::unordered_set<std::string> taps(observed.begin(), observed.end());
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    Node out;
    auto reads = graph::captured_names(model, node);
    reads.insert(reads.end(), node.inputs().begin(), node.inputs().end());
    for (const auto& name : reads) {
      if (const int weight = index.initializer(name); weight != graph::kNone) {
        const auto& tensor = model.graph.initializers[static_cast<std::size_t>(weight)];
        out.weights.emplace_back(static_cast<std::size_t>(weight), resident_bytes(model, index, types, tensor));
      } else if (const auto found = numbers.find(name); found != numbers.end()) {
        out.reads.push_back(found->second);
      }
    }
    for (const auto& name : node.outputs()) {
      if (const auto found = numbers.find(name); found != numbers.end()) out.makes.push_back(found->second);
      out.taps += taps.contains(name) ? 1 : 0;
    }
    const bool kept = !out.reads.empty() && lives.end[values_[out.reads.front()].block] != n;
    out.workspace = workspace(node, kept);
    out.copies = blocked ? convolution_weights(model, index, node) : 0;
    nodes_.push_back(std::move(out));
  }
}

// The bytes that are spooled at each cut, and the values that are no longer needed after each node.
void SegmentWalk::sum_border() {
  std::vector<std::uint64_t> born(nodes_.size() + 2, 0), gone(nodes_.size() + 2, 0);
  dying_.resize(nodes_.size());
  for (std::size_t v = 0; v < values_.size(); ++v) {
    const auto& value = values_[v];
    if (value.last == kNever) continue;
    born[static_cast<std::size_t>(value.producer + 1)] += value.bytes;
    gone[static_cast<std::size_t>(value.last + 1)] += value.bytes;
    if (value.producer >= 0) dying_[static_cast<std::size_t>(value.last)].push_back(v);
  }
  std::uint64_t waiting = 0;
  for (std::size_t cut = 0; cut <= nodes_.size(); ++cut) {
    waiting += born[cut] - gone[cut];
    waiting_.push_back(waiting);
  }
}

void SegmentWalk::begin(int node) {
  first_ = next_ = node;
  ++generation_;
  cost_ = {};
  alive_ = peak_ = session_ = copies_ = 0;
}

void SegmentWalk::enter(const Node& node) {
  for (const auto v : node.reads) {
    const auto& value = values_[v];
    if (value.producer >= first_ || std::exchange(seen_value_[v], generation_) == generation_) continue;
    cost_.read_bytes += value.bytes;
  }
  for (const auto& [weight, bytes] : node.weights) {
    if (std::exchange(seen_weight_[weight], generation_) != generation_) cost_.weights += bytes;
  }
  for (const auto v : node.makes) {
    const auto& value = values_[v];
    if (value.last != kNever) cost_.write_bytes += value.bytes;
    // A value that shares the memory of one from before the segment has memory of its own here.
    if (std::exchange(seen_block_[value.block], generation_) != generation_) alive_ += block_bytes_[value.block];
  }
  session_ += kSessionNode * (1 + node.taps);
  copies_ += node.copies;
  peak_ = std::max(peak_, alive_ + node.workspace);
}

SegmentCost SegmentWalk::step() {
  const auto n = static_cast<std::size_t>(next_++);
  enter(nodes_[n]);
  for (const auto v : dying_[n]) {
    const auto& value = values_[v];
    if (value.producer >= first_) cost_.write_bytes -= value.bytes;  // nobody behind the segment needs it
  }
  const auto free_block = [&](std::size_t v) {
    const std::size_t block = values_[v].block;
    if (block_end_[block] != n || seen_block_[block] != generation_) return;
    alive_ -= block_bytes_[block];
    seen_block_[block] = kNever;
  };
  for (const auto v : nodes_[n].reads) free_block(v);
  for (const auto v : nodes_[n].makes) free_block(v);
  SegmentCost cost = cost_;
  cost.anonymous = fixed_ + session_ + copies_ + workers_ * (cost.read_bytes + peak_);
  return cost;
}

}  // namespace detent::planning
