// The choice of a form for each of many layers, under prices of what the forms cost.
#pragma once

#include <cstddef>
#include <vector>

namespace detent::searching {

/// What a form of a layer adds to the whole, in units of the caller's.
struct Costs {
  double error = 0;
  double seconds = 0;
  double bytes = 0;

  Costs& operator+=(const Costs& other) {
    error += other.error;
    seconds += other.seconds;
    bytes += other.bytes;
    return *this;
  }
};

/// Two layers of which the one reads what the other makes: seconds of conversions, by the form of `from` and that of
/// `to`.
struct Border {
  std::size_t from = 0, to = 0;
  std::vector<std::vector<double>> seconds;
};

struct Problem {
  /// The forms of each layer; none is empty.
  std::vector<std::vector<Costs>> layers;
  std::vector<Border> borders;
};

/// Of error, seconds and bytes; none is negative.
using Prices = Costs;

/// The form of each layer.
using Choice = std::vector<std::size_t>;

Costs costs_of(const Problem& problem, const Choice& choice);

inline double price_of(const Costs& costs, const Prices& prices) {
  return prices.error * costs.error + prices.seconds * costs.seconds + prices.bytes * costs.bytes;
}

}  // namespace detent::searching
