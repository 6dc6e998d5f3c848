#include "quantization/power_of_two.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "config/targets.h"

namespace detent::quantization {
namespace {

constexpr std::size_t kScales = 5;

}  // namespace

void search_power_of_two(const onnx::Tensor& constant, const Mark& mark, const QuantConfig& config,
                         ValueAssignment& assignment) {
  if (!config.power_of_two_scale || !config::target(config).nearest_power_of_two || assignment.slices.size() != 1)
    return;
  const auto format = constant_format(mark, config);
  const auto range = mapped_range(format.type, format.symmetric, format.reduce_range);
  auto& params = assignment.slices.front();
  const double least = range.min - params.zero_point, most = range.max - params.zero_point;
  std::array<double, kScales> scales{}, errors{};
  for (std::size_t i = 0; i < kScales; ++i) scales[i] = std::ldexp(params.scale, 1 - static_cast<int>(i));
  onnx::for_each_float(constant.data, [&](std::span<const float> values, std::int64_t) {
    for (const float value : values) {
      for (std::size_t i = 0; i < kScales; ++i) {
        const double stored = std::clamp(std::nearbyint(static_cast<double>(value) / scales[i]), least, most);
        const double error = static_cast<double>(value) - stored * scales[i];
        errors[i] += error * error;
      }
    }
  });
  const auto best = std::min_element(errors.begin(), errors.end()) - errors.begin();
  params.scale = static_cast<float>(scales[static_cast<std::size_t>(best)]);
}

}  // namespace detent::quantization
