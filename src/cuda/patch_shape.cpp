#include "cuda/patch_shape.h"

#include <limits>

#include "base/error.h"

namespace detent::cuda {
namespace {

std::int32_t checked_int32(std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<std::int32_t>::max())
    throw resource_error("a layer's shape is beyond what the GPU's kernels count", "give --device cpu");
  return static_cast<std::int32_t>(value);
}

}  // namespace

PatchShape patch_shape(const solve::LayerGeometry& g, const std::vector<std::int64_t>& input) {
  const auto output = g.output_shape(input);
  const std::size_t axes = g.kernel.size();
  if (axes == 0 || axes > 3) throw internal_error("convolutions have one to three spatial axes");
  PatchShape shape{};
  for (PatchAxis& axis : shape.axes) axis = {1, 1, 1, 1, 1, 0};
  std::int64_t positions = 1, values = 1, kernel = 1;
  for (std::size_t a = 0; a < axes; ++a) {
    shape.axes[3 - axes + a] = {checked_int32(input[a + 2]),   checked_int32(output[a + 2]),
                                checked_int32(g.kernel[a]),    checked_int32(g.strides[a]),
                                checked_int32(g.dilations[a]), static_cast<std::int32_t>(g.pads_begin[a])};
    positions = checked_int32(positions * output[a + 2]);
    values = checked_int32(values * input[a + 2]);
    kernel = checked_int32(kernel * g.kernel[a]);
  }
  shape.transposed = g.kind == solve::LayerKind::transposed ? 1 : 0;
  shape.channels = checked_int32(g.inputs);
  shape.outputs = checked_int32(g.outputs);
  shape.kernel_size = checked_int32(kernel);
  shape.sample_positions = checked_int32(positions);
  shape.input_values = checked_int32(values);
  return shape;
}

}  // namespace detent::cuda
