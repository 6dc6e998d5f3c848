#include "searching/problem.h"

namespace detent::searching {

Costs costs_of(const Problem& problem, const Choice& choice) {
  Costs sum;
  for (std::size_t l = 0; l < problem.layers.size(); ++l) sum += problem.layers[l][choice[l]];
  for (const auto& border : problem.borders) sum.seconds += border.seconds[choice[border.from]][choice[border.to]];
  return sum;
}

}  // namespace detent::searching
