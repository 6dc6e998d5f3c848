#include "quantization/granularity.h"

namespace detent::quantization {

std::vector<std::int64_t> scale_dims(const Granularity& granularity, const std::vector<std::int64_t>& dims) {
  if (granularity.is_tensor()) return {};
  if (granularity.kind == Granularity::Kind::axis) return {dims.at(granularity.axis)};
  auto blocks = dims;
  auto& along = blocks.at(granularity.axis);
  along = (along + granularity.block - 1) / granularity.block;
  return blocks;
}

std::size_t slice_count(const Granularity& granularity, const std::vector<std::int64_t>& dims) {
  std::size_t count = 1;
  for (const auto dim : scale_dims(granularity, dims)) count *= static_cast<std::size_t>(dim);
  return count;
}

}  // namespace detent::quantization
