// How many machines of which kind carry a load for the least money.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace detent::searching {

/// A kind of machine, of which any number can be had.
struct Offer {
  double capacity = 0;  // above 0
  double price = 0;     // at least 0
};

/// How many of each carry `demand` together for the least price: an integer covering problem, solved by branch and
/// bound with the price of fractions of machines as the bound. Where that takes more than a million steps, the best
/// found by then. Empty where it takes more than 10^15 of one kind. `offers` are not empty.
std::vector<std::uint64_t> cheapest_fleet(std::span<const Offer> offers, double demand);

}  // namespace detent::searching
