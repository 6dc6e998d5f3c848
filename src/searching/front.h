// Choices that no price excludes: the front of error, seconds and bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "searching/choice.h"

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

/// A kind of machine, of which any number can be had.
struct Offer {
  double capacity = 0;  // above 0
  double price = 0;     // at least 0
};

/// How many of each carry `demand` together for the least price: an integer covering problem, solved by branch and
/// bound with the price of fractions of machines as the bound. Where that takes more than a million steps, the best
/// found by then. Empty where it takes more than 10^15 of one kind. `offers` are not empty.
std::vector<std::uint64_t> cheapest_fleet(std::span<const Offer> offers, double demand);

/// An HTML page that shows front.json, whose text is safe inside a script element. It asks nothing of a network.
std::string page(std::string_view json);

}  // namespace detent::searching
