#include "cuda/rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
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

void check_size(std::size_t rows, std::size_t columns) {
  if (static_cast<double>(rows) * static_cast<double>(columns) < 0x1p32) return;
  throw resource_error(fmt::format("a layer of {} x {} weights is beyond what the GPU's kernels count", rows, columns),
                       "give more devices, which share its rows, or --device cpu");
}

void for_each_device(std::size_t count, const std::function<void(std::size_t)>& fn) { parallel_for(count, count, fn); }

}  // namespace detent::cuda
