#include "solve/blocks/block_columns.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "solve/blocks/block_error.h"

namespace detent::solve {

BlockGrids grids_of(const quantization::BlockWeight& made, std::size_t first_column, std::size_t columns,
                    std::size_t block) {
  BlockGrids grids{};
  for (std::size_t l = 0; l < columns; ++l) {
    const std::size_t at = (first_column + l) * static_cast<std::size_t>(made.blocks()) + block;
    const float scale = made.scales[at], inverse = 1.0F / scale;
    const int zero = made.zero_points[at];
    grids.scale.at[l] = scale;
    grids.inverse.at[l] = scale != 0 && std::isfinite(inverse) ? inverse : 0.0F;
    grids.low.at[l] = static_cast<float>(-zero);
    grids.high.at[l] = static_cast<float>(made.format.largest() - zero);
  }
  return grids;
}

void copy_in(const float* values, std::size_t first, std::size_t last, std::size_t column, Lanes* lanes) {
  for (std::size_t j = first; j < last; ++j) {
    std::copy_n(values + j * kColumnsTogether + column, kLanes, lanes[j - first].at);
  }
}

void copy_out(const Lanes* lanes, std::size_t first, std::size_t last, std::size_t column, float* values) {
  for (std::size_t j = first; j < last; ++j) {
    std::copy_n(lanes[j - first].at, kLanes, values + j * kColumnsTogether + column);
  }
}

void store_integers(const BlockColumns& columns, const std::vector<std::size_t>& order) {
  auto& made = columns.made;
  const auto rows = static_cast<std::size_t>(made.rows), blocks = static_cast<std::size_t>(made.blocks());
  const auto block = static_cast<std::size_t>(made.format.block_of(made.rows));
  for (std::size_t j = 0; j < rows; ++j) {
    const float* steps = columns.steps.data() + j * kColumnsTogether;
    for (std::size_t n = 0; n < columns.count; ++n) {
      const std::size_t column = columns.first + n;
      const int zero = made.zero_points[column * blocks + order[j] / block];
      made.integers[column * rows + order[j]] = static_cast<std::uint8_t>(static_cast<int>(steps[n]) + zero);
    }
  }
}

}  // namespace detent::solve
