#include "quantization/blocks/element_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "quantization/formats.h"

namespace detent::quantization {
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
