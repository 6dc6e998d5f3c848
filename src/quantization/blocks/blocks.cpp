#include "quantization/blocks/blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/numbers.h"
#include "quantization/formats.h"

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

// What each code stands for, before its scale; 0 where that is no finite number.
std::array<float, 256> element_values(const BlockFormat& format) noexcept {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < std::size_t{1} << format.bits; ++code) {
    if (!format.floats) {
      values[code] = static_cast<float>(static_cast<int>(code) - format.middle());
      continue;
    }
    const auto type = small_float(*format.floats);
    const float value = onnx::from_small_float(static_cast<std::uint8_t>(code), type);
    if (std::fabs(value) <= type.largest) values[code] = value;
  }
  return values;
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

void pack(std::span<const std::uint8_t> integers, int bits, std::byte* packed) {
  const std::size_t in_byte = 8 / static_cast<std::size_t>(bits);
  const std::size_t whole = integers.size() / in_byte;
  const std::uint8_t* in = integers.data();
  if (bits == 8) {
    for (std::size_t i = 0; i < whole; ++i) packed[i] = std::byte{in[i]};
  } else if (bits == 4) {
    for (std::size_t i = 0; i < whole; ++i) packed[i] = static_cast<std::byte>(in[2 * i] | in[2 * i + 1] << 4);
  } else {
    for (std::size_t i = 0; i < whole; ++i)
      packed[i] = static_cast<std::byte>(in[4 * i] | in[4 * i + 1] << 2 | in[4 * i + 2] << 4 | in[4 * i + 3] << 6);
  }
  if (whole * in_byte == integers.size()) return;
  int last = 0;
  for (std::size_t i = whole * in_byte, shift = 0; i < integers.size(); ++i, shift += static_cast<std::size_t>(bits))
    last |= in[i] << shift;
  packed[whole] = static_cast<std::byte>(last);
}

std::vector<std::byte> packed_columns(const BlockWeight& weight) {
  const auto rows = static_cast<std::size_t>(weight.rows);
  const auto block = static_cast<std::size_t>(weight.format.block_of(weight.rows));
  const auto blocks = static_cast<std::size_t>(weight.blocks());
  const int bits = weight.format.bits;
  const std::size_t block_bytes = packed_bytes(block, bits);
  std::vector<std::byte> packed(static_cast<std::size_t>(weight.columns) * blocks * block_bytes);
  std::vector<std::uint8_t> whole(block);
  std::byte* out = packed.data();
  for (std::size_t n = 0; n < static_cast<std::size_t>(weight.columns); ++n) {
    for (std::size_t b = 0; b < blocks; ++b, out += block_bytes) {
      const std::uint8_t* integers = weight.integers.data() + n * rows + b * block;
      const std::size_t length = std::min(block, rows - b * block);
      if (length < block) {
        std::fill(std::copy_n(integers, length, whole.begin()), whole.end(), std::uint8_t{0});
        integers = whole.data();
      }
      pack({integers, block}, bits, out);
    }
  }
  return packed;
}

std::vector<std::byte> packed_zero_points(const BlockWeight& weight) {
  const auto blocks = static_cast<std::size_t>(weight.blocks());
  const std::size_t column_bytes = packed_bytes(blocks, weight.format.bits);
  std::vector<std::byte> packed(static_cast<std::size_t>(weight.columns) * column_bytes);
  std::vector<std::uint8_t> column(column_bytes * 8 / static_cast<std::size_t>(weight.format.bits),
                                   static_cast<std::uint8_t>(weight.format.middle()));
  for (std::size_t n = 0; n < static_cast<std::size_t>(weight.columns); ++n) {
    std::copy_n(weight.zero_points.begin() + static_cast<std::ptrdiff_t>(n * blocks), blocks, column.begin());
    pack(column, weight.format.bits, &packed[n * column_bytes]);
  }
  return packed;
}

PackedRows::PackedRows(std::int64_t rows, std::int64_t columns, int bits)
    : rows_(rows),
      columns_(columns),
      bits_(bits),
      bytes_(packed_bytes(static_cast<std::size_t>(rows * columns), bits)) {}

// Columns in stripes, so that the bytes of a row that they share are at hand.
void PackedRows::put(std::int64_t first, std::span<const std::uint8_t> integers, int offset) {
  constexpr std::int64_t kStripe = 64;
  const auto count = rows_ > 0 ? static_cast<std::int64_t>(integers.size()) / rows_ : 0;
  const auto bits = static_cast<std::size_t>(bits_);
  const unsigned mask = (1U << bits) - 1;
  for (std::int64_t begin = 0; begin < count; begin += kStripe) {
    const std::int64_t end = std::min(begin + kStripe, count);
    for (std::int64_t k = 0; k < rows_; ++k) {
      for (std::int64_t n = begin; n < end; ++n) {
        const auto bit = static_cast<std::size_t>(k * columns_ + first + n) * bits;
        const auto value = static_cast<unsigned>(integers[static_cast<std::size_t>(n * rows_ + k)] - offset) & mask;
        bytes_[bit / 8] |= static_cast<std::byte>(value << bit % 8);
      }
    }
  }
}

namespace {

float largest_element(const BlockFormat& format) noexcept {
  return format.floats ? small_float(*format.floats).largest : static_cast<float>(format.middle() - 1);
}

float largest_magnitude(std::span<const float> values) noexcept {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

int exponent_of(float value) noexcept { return std::ilogb(value); }

// Scales to try, the first of which is that of the largest value.
void scales_to_try(float largest, const BlockFormat& format, bool search, std::vector<float>& scales) {
  scales.clear();
  if (format.scales == ScaleType::float8e8m0) {
    const int exponent = exponent_of(largest) - exponent_of(largest_element(format));
    scales.push_back(onnx::from_float8e8m0(onnx::to_float8e8m0(exponent)));
    for (const int step : {1, -1}) {
      if (search) scales.push_back(onnx::from_float8e8m0(onnx::to_float8e8m0(exponent + step)));
    }
    return;
  }
  const float exact = largest / largest_element(format);
  if (format.scales == ScaleType::float8e4m3fn) {
    const int code = onnx::to_small_float(exact / format.common_scale, onnx::kFloat8E4M3FN);
    constexpr int kBelow = 6, kAbove = 2, kLargestCode = 0x7e;
    const auto add = [&](int c) {
      scales.push_back(onnx::from_small_float(static_cast<std::uint8_t>(c), onnx::kFloat8E4M3FN) * format.common_scale);
    };
    add(code);
    for (int c = std::max(0, code - kBelow); search && c <= std::min(code + kAbove, kLargestCode); ++c) add(c);
    return;
  }
  scales.push_back(std::max(exact, std::numeric_limits<float>::min()));
  constexpr int kSteps = 20;
  for (int i = 1; search && i <= kSteps; ++i) scales.push_back(scales[0] * (1.05F - 0.025F * static_cast<float>(i)));
}

double squared_error(std::span<const float> values, float scale, const std::array<float, 256>& meaning,
                     const std::uint8_t* elements) noexcept {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = static_cast<double>(values[i]) - static_cast<double>(scale * meaning[elements[i]]);
    sum += error * error;
  }
  return sum;
}

}  // namespace

void round_elements(std::span<const float> values, float scale, const BlockFormat& format, std::uint8_t* elements) {
  if (scale == 0) {
    std::fill_n(elements, values.size(), static_cast<std::uint8_t>(format.zero()));
  } else if (format.floats) {
    const auto type = small_float(*format.floats);
    for (std::size_t i = 0; i < values.size(); ++i) elements[i] = onnx::to_small_float(values[i] / scale, type);
  } else {
    const auto middle = static_cast<float>(format.middle());
    for (std::size_t i = 0; i < values.size(); ++i)
      elements[i] =
          static_cast<std::uint8_t>(std::clamp(std::nearbyint(values[i] / scale), -middle, middle - 1) + middle);
  }
}

BlockWeight element_blocks(std::span<const float> columns, std::int64_t rows, const BlockFormat& format, bool search) {
  const auto count = rows > 0 ? static_cast<std::int64_t>(columns.size()) / rows : 0;
  auto made = make_blocks(rows, count, format);
  const auto block = static_cast<std::size_t>(format.block_of(rows));
  const auto length = static_cast<std::size_t>(rows), blocks = static_cast<std::size_t>(made.blocks());
  const auto meaning = element_values(format);
  std::vector<float> scales;
  std::vector<std::uint8_t> tried(std::min(block, length));
  for (std::size_t b = 0; b < made.scales.size(); ++b) {
    const std::size_t first = b / blocks * length + b % blocks * block;
    const auto values = columns.subspan(first, std::min(block, length - b % blocks * block));
    const float largest = largest_magnitude(values);
    if (largest == 0) {
      // 0 is no power of two.
      if (format.scales == ScaleType::float8e8m0) made.scales[b] = 1;
      continue;
    }
    scales_to_try(largest, format, search, scales);
    double least = std::numeric_limits<double>::infinity();
    for (const float scale : scales) {
      round_elements(values, scale, format, tried.data());
      const double error = squared_error(values, scale, meaning, tried.data());
      if (error >= least) continue;
      least = error;
      made.scales[b] = scale;
      std::copy_n(tried.data(), values.size(), made.integers.data() + first);
    }
  }
  return made;
}

std::uint8_t scale_code(float scale, const BlockFormat& format) noexcept {
  if (format.scales == ScaleType::float8e8m0) return onnx::to_float8e8m0(exponent_of(scale));
  return onnx::to_small_float(scale / format.common_scale, onnx::kFloat8E4M3FN);
}

float common_scale(float largest, const BlockFormat& format) noexcept {
  const float scale = largest / (largest_element(format) * onnx::kFloat8E4M3FN.largest);
  return scale >= std::numeric_limits<float>::min() ? scale : 1.0F;
}

}  // namespace detent::quantization
