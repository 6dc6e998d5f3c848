// Choices that no price excludes: the front of error, seconds and bytes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "searching/problem.h"

namespace detent::searching {

struct FrontPoint {
  Choice choice;
  Costs costs;
};

/// Shares of another point's costs, by which something has to be better to count.
struct Margins {
  double error = 0, seconds = 0, bytes = 0;
};

/// Whether `a` is no worse than `b` in anything by more than a share of `slack` of b's, and better in something by more
/// than its margin.
bool dominates(const Costs& a, const Costs& b, double slack = 0, const Margins& margins = {});

/// The cheapest choices for a sweep of prices, each once, by falling error; those that another one dominates are left
/// out. `whole` is what seconds and bytes count in shares of: the costs of the model that the sweep begins with.
std::vector<FrontPoint> pareto_front(const Problem& problem, const Costs& whole);

/// Of points so many, far from each other and from those in `taken`: by their seconds and bytes as shares of `whole`,
/// and their error in decibels. Positions in `points`, in the order in which they are worth measuring.
std::vector<std::size_t> most_spread_points(std::span<const Costs> points, std::span<const Costs> taken,
                                            const Costs& whole, std::size_t most);

}  // namespace detent::searching
