// Minimum cuts of networks: the cheapest way to tell two sides apart. Dinic 1970, "Algorithm for solution of a problem
// of maximum flow in networks with power estimation".
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace detent::speed {

class MinCut {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 4;

  /// Vertices 0 to `vertices` - 1.
  explicit MinCut(std::size_t vertices) : arcs_of_(vertices) {}

  /// What it costs when `from` is on the source's side and `to` is not. 0 <= cost <= kNever.
  void add(std::size_t from, std::size_t to, std::int64_t cost);

  /// For each vertex whether it is on the source's side of a cut of least cost; of several, the one with the most
  /// vertices there. To be called once.
  std::vector<bool> source_side(std::size_t source, std::size_t sink);
  /// Of that cut.
  std::int64_t cost() const noexcept { return cost_; }
  /// Of any other, without what costs kNever: `side` says for each vertex whether it is on the source's side.
  std::int64_t cost_of(const std::vector<bool>& side) const;

 private:
  struct Arc {
    std::size_t to = 0;
    std::int64_t left = 0;  // what can still flow; the arc back is the next or the one before
  };
  bool measure_distances(std::size_t source, std::size_t sink);
  std::vector<bool> reaches(std::size_t sink) const;
  std::int64_t push(std::size_t source, std::size_t sink);

  std::vector<Arc> arcs_;
  std::vector<std::vector<std::size_t>> arcs_of_;
  std::vector<std::size_t> distance_, next_;
  std::int64_t cost_ = 0;  // what flows
};

}  // namespace detent::speed
