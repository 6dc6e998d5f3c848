#include "solve/layers/nearest_plane.h"

#include <algorithm>

#include "solve/algebra/vector_sums.h"

namespace detent::solve {

void round_block(const QuantizedWeights& weights, RowRange rows, const Cholesky& factor, Patches::Range block,
                 const std::size_t* order, BlockOf<const float> wanted, BlockOf<float> sums, BlockOf<float> difference,
                 BlockOf<std::int32_t> integers) {
  constexpr std::size_t kTogether = 8;  // each weight waits for the one before it, but rows do not for each other
  for (std::size_t at = 0; at < rows.count(); at += kTogether) {
    for (std::size_t j = block.last; j-- > block.first;) {
      const std::size_t c = j - block.first;
      const float* line = factor.row(j) + block.first;
      const std::size_t weight = order[j];
      for (std::size_t r = at; r < std::min(at + kTogether, rows.count()); ++r) {
        const std::size_t row = rows.first + r;
        const float target = wanted.row(r)[c];
        const std::int32_t q = weights.quantize(row, weight, target - sums.row(r)[c] / factor.diagonal(j));
        const float change = weights.dequantize(row, weight, q) - target;
        integers.row(r)[c] = q;
        difference.row(r)[c] = change;
        add_scaled(sums.row(r), change, line, c + 1);
      }
    }
  }
}

}  // namespace detent::solve
