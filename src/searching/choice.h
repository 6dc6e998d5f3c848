// The cheapest choice of forms.
#pragma once

#include <cstddef>

#include "searching/problem.h"

namespace detent::searching {

/// Sums over the forms of layers that are eliminated together may have so many terms.
inline constexpr std::size_t kMostTerms = std::size_t{1} << 20;

/// The cheapest choice: exact wherever eliminating one layer after the other keeps to `most_terms`, as in chains,
/// branches and skips of networks; else by expand().
Choice cheapest_choice(const Problem& problem, const Prices& prices, std::size_t most_terms = kMostTerms);

/// By expansion moves, each the best one by a minimum cut (Boykov, Veksler, Zabih 2001): exact for two forms whose
/// conversions cost no less than staying in either; else no single move makes it better.
Choice expand(const Problem& problem, const Prices& prices);

}  // namespace detent::searching
