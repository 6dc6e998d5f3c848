#include "quantization/blocks/blocks.h"

#include <cmath>

#include "base/error.h"
#include "base/min_max.h"
#include "base/vector_clones.h"
#include "quantization/blocks/element_blocks.h"

namespace detent::quantization {
namespace {

// Halves go away from zero, and what is negative becomes 0 in any case: adding the bit that truncation cuts off is
// exact, where adding one half is not.
DETENT_VECTOR_CLONES
void round_values(const float* values, std::size_t count, float inverse, float zero, float max, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i) {
    float x = values[i] * inverse + zero;
    x = x < 0.0F ? 0.0F : x;
    x = x > max ? max : x;
    const auto whole = static_cast<std::int32_t>(x);
    const std::int32_t up = x - static_cast<float>(whole) >= 0.5F ? 1 : 0;
    out[i] = static_cast<std::uint8_t>(whole + up);
  }
}

DETENT_VECTOR_CLONES
void dequantize_run(const std::uint8_t* integers, std::size_t count, float scale, int zero, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = scale * static_cast<float>(integers[i] - zero);
}

float inverse_of(float scale) {
  const float inverse = scale != 0 ? 1.0F / scale : 0.0F;
  return std::isfinite(inverse) ? inverse : 0.0F;
}

// Calls fn(block, first value, its number of values) for each block of all columns; values and blocks are numbered
// through.
template <class Fn>
void for_each_block(const BlockWeight& weight, Fn fn) {
  const auto block = weight.format.block_of(weight.rows);
  const auto blocks = weight.blocks();
  for (std::int64_t n = 0; n < weight.columns; ++n) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      const auto first = b * block;
      fn(static_cast<std::size_t>(n * blocks + b), static_cast<std::size_t>(n * weight.rows + first),
         static_cast<std::size_t>(std::min(block, weight.rows - first)));
    }
  }
}

}  // namespace

BlockWeight make_blocks(std::int64_t rows, std::int64_t columns, const BlockFormat& format) {
  BlockWeight made{.rows = rows, .columns = columns, .format = format, .integers = {}, .scales = {}, .zero_points = {}};
  const auto middle = static_cast<std::uint8_t>(format.zero());
  made.integers.assign(static_cast<std::size_t>(rows * columns), middle);
  made.scales.assign(static_cast<std::size_t>(columns * made.blocks()), 0.0F);
  made.zero_points.assign(made.scales.size(), middle);
  return made;
}

BlockScale block_scale(float min, float max, const BlockFormat& format) {
  BlockScale made{.scale = 0, .zero_point = static_cast<std::uint8_t>(format.middle())};
  if (format.symmetric) {
    const float farther = std::fabs(max) > std::fabs(min) ? max : min;
    made.scale = -farther / static_cast<float>(format.middle());
  } else {
    min = std::min(min, 0.0F);
    max = std::max(max, 0.0F);
    const auto largest = static_cast<float>(format.largest());
    made.scale = (max - min) / largest;
    const float zero = made.scale != 0 ? -min / made.scale : 0.0F;
    made.zero_point = static_cast<std::uint8_t>(std::round(std::clamp(zero, 0.0F, largest)));
  }
  if (!std::isfinite(made.scale)) throw bad_input("weights are so far apart that their range exceeds float32");
  return made;
}

void round_block(std::span<const float> values, BlockScale scale, int bits, std::uint8_t* integers) {
  round_values(values.data(), values.size(), inverse_of(scale.scale), scale.zero_point,
               static_cast<float>((1 << bits) - 1), integers);
}

BlockWeight nearest(std::span<const float> columns, std::int64_t rows, const BlockFormat& format) {
  const auto count = rows > 0 ? static_cast<std::int64_t>(columns.size()) / rows : 0;
  auto made = make_blocks(rows, count, format);
  for_each_block(made, [&](std::size_t block, std::size_t first, std::size_t length) {
    const auto values = columns.subspan(first, length);
    const auto [min, max] = widened({values[0], values[0]}, values);
    const auto scale = block_scale(min, max, format);
    made.scales[block] = scale.scale;
    made.zero_points[block] = scale.zero_point;
    round_block(values, scale, format.bits, made.integers.data() + first);
  });
  return made;
}

void dequantize(const BlockWeight& weight, std::span<float> values) {
  if (weight.format.floats) {
    const auto meaning = element_values(weight.format);
    for_each_block(weight, [&](std::size_t block, std::size_t first, std::size_t length) {
      for (std::size_t i = first; i < first + length; ++i)
        values[i] = weight.scales[block] * meaning[weight.integers[i]];
    });
    return;
  }
  for_each_block(weight, [&](std::size_t block, std::size_t first, std::size_t length) {
    dequantize_run(weight.integers.data() + first, length, weight.scales[block], weight.zero_points[block],
                   values.data() + first);
  });
}

}  // namespace detent::quantization
