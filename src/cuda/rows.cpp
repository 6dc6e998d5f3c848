#include "cuda/rows.h"

#include <algorithm>

#include "base/parallel.h"

namespace detent::cuda {

std::vector<finetune::RowRange> share_rows(std::size_t rows, std::size_t groups, std::size_t devices) {
  const std::size_t units = groups > 1 ? groups : rows;
  const std::size_t unit = rows / std::max<std::size_t>(units, 1);
  const std::size_t pieces = std::min(units, devices);
  std::vector<finetune::RowRange> ranges;
  for (std::size_t i = 0; i < pieces; ++i) {
    ranges.push_back({units * i / pieces * unit, units * (i + 1) / pieces * unit});
  }
  return ranges;
}

void for_each_device(std::size_t count, const std::function<void(std::size_t)>& fn) { parallel_for(count, count, fn); }

}  // namespace detent::cuda
