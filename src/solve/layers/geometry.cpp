#include "solve/layers/geometry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <numeric>

#include "base/error.h"

namespace detent::solve {
namespace {

std::int64_t axis_size(const LayerGeometry& g, std::size_t a, std::int64_t in) {
  const std::int64_t reach = g.dilations[a] * (g.kernel[a] - 1) + 1;
  const std::int64_t pads = g.pads_begin[a] + g.pads_end[a];
  if (g.kind == LayerKind::transposed) return (in - 1) * g.strides[a] - pads + reach + g.output_padding[a];
  return in + pads < reach ? 0 : (in + pads - reach) / g.strides[a] + 1;
}

}  // namespace

std::int64_t LayerGeometry::fan_in() const {
  return std::accumulate(kernel.begin(), kernel.end(), inputs / groups, std::multiplies<>());
}

std::vector<std::int64_t> LayerGeometry::output_shape(const std::vector<std::int64_t>& input) const {
  const bool is_product = kind == LayerKind::product;
  const bool fits =
      is_product ? !input.empty() && input.back() == inputs : input.size() == kernel.size() + 2 && input[1] == inputs;
  if (!fits) throw internal_error(fmt::format("a layer of {} inputs cannot take [{}]", inputs, fmt::join(input, ", ")));
  std::vector<std::int64_t> shape = input;
  (is_product ? shape.back() : shape[1]) = outputs;
  for (std::size_t a = 0; a < kernel.size(); ++a) {
    shape[a + 2] = axis_size(*this, a, input[a + 2]);
    if (shape[a + 2] < 0) throw internal_error(fmt::format("no output is left of [{}]", fmt::join(input, ", ")));
  }
  return shape;
}

}  // namespace detent::solve
