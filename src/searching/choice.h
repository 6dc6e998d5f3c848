// The cheapest choice of forms.
#pragma once

#include <cstddef>
#include <optional>
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

/// Sums over the forms of layers that are eliminated together may have so many terms.
inline constexpr std::size_t kMostTerms = std::size_t{1} << 20;

/// The cheapest choice: exact wherever eliminating one layer after the other keeps to `most_terms`, as in chains,
/// branches and skips of networks; else by expand().
Choice cheapest_choice(const Problem& problem, const Prices& prices, std::size_t most_terms = kMostTerms);

/// By expansion moves, each the best one by a minimum cut (Boykov, Veksler, Zabih 2001): exact for two forms whose
/// conversions cost no less than staying in either; else no single move makes it better.
Choice expand(const Problem& problem, const Prices& prices);

/// The cheapest of all choices; unset: some layer has so many neighbours when its turn comes that the table of their
/// forms would exceed `most_terms`.
std::optional<Choice> eliminate(const Problem& problem, const Prices& prices, std::size_t most_terms);

}  // namespace detent::searching
