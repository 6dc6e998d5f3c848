// The cheapest choice by eliminating layers: dynamic programming over the graph of borders.
#pragma once

#include <cstddef>
#include <optional>

#include "searching/problem.h"

namespace detent::searching {

/// The cheapest of all choices; unset: some layer has so many neighbours when its turn comes that the table of their
/// forms would exceed `most_terms`.
std::optional<Choice> eliminate(const Problem& problem, const Prices& prices, std::size_t most_terms);

}  // namespace detent::searching
