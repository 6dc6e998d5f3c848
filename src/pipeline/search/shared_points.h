// What ranks tell each other of the models of a search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/search.h"
#include "shim/ranks.h"

namespace detent::pipeline {

/// A point that was to be made, and why the model has no such form; empty: it was made.
struct Attempt {
  SearchPoint point;
  std::string reason;
};

/// What a rank made of the points that rank 0 wants.
struct PointShare {
  std::vector<Attempt> attempts;
  std::uint64_t inferences = 0;
  bool cut_off = false;  // since time was up; then there are no attempts
};

/// Collective: names and formats of the points that rank 0 wants, on all ranks.
std::vector<SearchPoint> broadcast_points(shim::Ranks* ranks, const std::vector<SearchPoint>& points,
                                          const std::stop_token& stop);

/// Of each attempt what was measured and the reason; the points themselves are known.
std::vector<std::byte> written(const PointShare& share);
/// Reads what a rank wrote of these points. Throws device for what is no such message.
PointShare read_share(int rank, std::span<const std::byte> bytes, const std::vector<SearchPoint>& points);

}  // namespace detent::pipeline
