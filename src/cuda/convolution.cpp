#include "cuda/convolution.h"

namespace detent::cuda {

// The library pads both ends of an axis by as much as the beginning. It makes no difference where as many outputs come
// out: which value meets which follows from the beginning alone.
bool Convolution::supports(const solve::LayerGeometry& g, const std::vector<std::int64_t>& input) {
  if (g.kind == solve::LayerKind::product) return false;
  const auto output = g.output_shape(input);
  const bool transposed = g.kind == solve::LayerKind::transposed;
  for (std::size_t a = 0; a < g.kernel.size(); ++a) {
    const std::int64_t spread = transposed ? output[a + 2] : input[a + 2];  // what a plain convolution reads
    const std::int64_t steps = transposed ? input[a + 2] : output[a + 2];
    const std::int64_t reach = g.dilations[a] * (g.kernel[a] - 1) + 1;
    const std::int64_t room = spread + 2 * g.pads_begin[a] - reach;
    if (g.pads_begin[a] < 0 || room < 0 || room / g.strides[a] + 1 != steps) return false;
  }
  return true;
}

}  // namespace detent::cuda
