#include "speed/min_cut.h"

#include <algorithm>

namespace detent::speed {
namespace {

constexpr std::size_t kUnreached = std::numeric_limits<std::size_t>::max();

}  // namespace

void MinCut::add(std::size_t from, std::size_t to, std::int64_t cost) {
  if (cost <= 0 || from == to) return;
  arcs_of_[from].push_back(arcs_.size());
  arcs_.push_back({to, cost});
  arcs_of_[to].push_back(arcs_.size());
  arcs_.push_back({from, 0});
}

std::vector<bool> MinCut::source_side(std::size_t source, std::size_t sink) {
  while (measure_distances(source, sink)) {
    next_.assign(arcs_of_.size(), 0);
    while (const auto flow = push(source, sink)) cost_ += flow;
  }
  auto side = reaches(sink);
  side.flip();
  return side;
}

std::int64_t MinCut::cost_of(const std::vector<bool>& side) const {
  std::int64_t sum = 0;
  for (std::size_t a = 0; a < arcs_.size(); a += 2) {
    const auto& back = arcs_[a + 1];
    const auto cost = arcs_[a].left + back.left;  // what can still flow, and what does
    if (side[back.to] && !side[arcs_[a].to] && cost < kNever) sum += cost;
  }
  return sum;
}

// Vertices from which more could flow to the sink.
std::vector<bool> MinCut::reaches(std::size_t sink) const {
  std::vector<bool> found(arcs_of_.size());
  found[sink] = true;
  std::vector<std::size_t> queue{sink};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (const auto a : arcs_of_[queue[i]]) {
      const auto from = arcs_[a].to;  // the other end of the arc that comes in
      if (arcs_[a ^ 1U].left == 0 || found[from]) continue;
      found[from] = true;
      queue.push_back(from);
    }
  }
  return found;
}

bool MinCut::measure_distances(std::size_t source, std::size_t sink) {
  distance_.assign(arcs_of_.size(), kUnreached);
  distance_[source] = 0;
  std::vector<std::size_t> queue{source};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (const auto a : arcs_of_[queue[i]]) {
      const auto& arc = arcs_[a];
      if (arc.left == 0 || distance_[arc.to] != kUnreached) continue;
      distance_[arc.to] = distance_[queue[i]] + 1;
      queue.push_back(arc.to);
    }
  }
  return distance_[sink] != kUnreached;
}

// One path of growing distances, without recursion: a model may be a chain of many thousand nodes.
std::int64_t MinCut::push(std::size_t source, std::size_t sink) {
  std::vector<std::size_t> path;
  for (std::size_t at = source; at != sink;) {
    bool forward = false;
    for (auto& i = next_[at]; i < arcs_of_[at].size(); ++i) {
      const auto& arc = arcs_[arcs_of_[at][i]];
      if (arc.left == 0 || distance_[arc.to] != distance_[at] + 1) continue;
      path.push_back(arcs_of_[at][i]);
      at = arc.to;
      forward = true;
      break;
    }
    if (forward) continue;
    if (path.empty()) return 0;
    at = arcs_[path.back() ^ 1U].to;
    ++next_[at];
    path.pop_back();
  }
  std::int64_t flow = kNever;
  for (const auto a : path) flow = std::min(flow, arcs_[a].left);
  for (const auto a : path) {
    arcs_[a].left -= flow;
    arcs_[a ^ 1U].left += flow;
  }
  return flow;
}

}  // namespace detent::speed
