#include "quantization/formats.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace detent::quantization {

onnx::DataType data_type(QuantType type) noexcept {
  switch (type) {
    case QuantType::int8: return onnx::DataType::int8;
    case QuantType::uint8: return onnx::DataType::uint8;
    case QuantType::int16: return onnx::DataType::int16;
    case QuantType::uint16: return onnx::DataType::uint16;
    case QuantType::int4: return onnx::DataType::int4;
    case QuantType::uint4: return onnx::DataType::uint4;
    case QuantType::float8e4m3fn: return onnx::DataType::float8e4m3fn;
    case QuantType::float8e5m2: return onnx::DataType::float8e5m2;
    case QuantType::float4e2m1: return onnx::DataType::float4e2m1;
  }
  return onnx::DataType::undefined;
}

bool is_signed(QuantType type) noexcept {
  return type == QuantType::int8 || type == QuantType::int16 || type == QuantType::int4 || is_float(type);
}
onnx::SmallFloat small_float(QuantType type) noexcept {
  return type == QuantType::float8e4m3fn ? onnx::kFloat8E4M3FN
         : type == QuantType::float8e5m2 ? onnx::kFloat8E5M2
                                         : onnx::kFloat4E2M1;
}
bool is_16_bit(QuantType type) noexcept { return type == QuantType::int16 || type == QuantType::uint16; }
QuantType with_16_bits(QuantType type) noexcept { return is_signed(type) ? QuantType::int16 : QuantType::uint16; }
QuantType with_sign(QuantType type) noexcept {
  return type == QuantType::uint8 ? QuantType::int8 : type == QuantType::uint16 ? QuantType::int16 : type;
}

bool is_4_bit(QuantType type) noexcept { return type == QuantType::int4 || type == QuantType::uint4; }
bool needs_opset_21(QuantType type) noexcept { return is_16_bit(type) || is_4_bit(type); }

IntRange full_range(QuantType type) noexcept {
  if (is_float(type)) {
    const auto largest = static_cast<std::int32_t>(small_float(type).largest);
    return {-largest, largest};
  }
  const std::int32_t span = std::int32_t{1} << onnx::bits_of(data_type(type));
  return is_signed(type) ? IntRange{-span / 2, span / 2 - 1} : IntRange{0, span - 1};
}

IntRange mapped_range(QuantType type, bool symmetric, bool reduce_range) noexcept {
  const IntRange full = full_range(type);
  if (is_float(type)) return full;
  if (reduce_range) return is_signed(type) ? IntRange{full.min / 2, -(full.min / 2)} : IntRange{0, full.max / 2};
  if (symmetric && is_signed(type) && !is_4_bit(type)) return {full.min + 1, full.max};
  return full;
}

double power_of_two_above(double scale) noexcept {
  constexpr int kLargest = std::numeric_limits<float>::max_exponent - 1;
  int exponent = 0;
  if (std::frexp(scale, &exponent) == 0.5) --exponent;  // it is a power of two
  return std::ldexp(1.0, std::min(exponent, kLargest));
}

namespace {

double nearest_power_of_two(double scale) noexcept {
  return std::ldexp(1.0, static_cast<int>(-std::nearbyint(-std::log2(scale))));
}

}  // namespace

ScaleZeroPoint compute_params(float min, float max, const IntFormat& format) noexcept {
  const bool symmetric = format.symmetric || is_float(format.type);
  const IntRange q = mapped_range(format.type, symmetric, format.reduce_range);
  double lo = std::min(min, 0.0F);
  double hi = std::max(max, 0.0F);
  if (symmetric) {
    hi = std::max(std::abs(lo), std::abs(hi));
    lo = -hi;
  }
  double scale = (hi - lo) / (static_cast<double>(q.max) - q.min);
  const double middle = (static_cast<double>(q.min) + q.max) / 2.0;
  if (scale < std::numeric_limits<float>::min()) {
    const bool keeps_middle = symmetric && format.uniform_zero_point;
    return {1.0F, keeps_middle ? static_cast<std::int32_t>(std::nearbyint(middle)) : 0};
  }
  if (format.power_of_two_scale)
    scale = format.nearest_power_of_two ? nearest_power_of_two(scale) : power_of_two_above(scale);
  const double zero = symmetric ? middle : q.min - lo / scale;
  return {static_cast<float>(scale), static_cast<std::int32_t>(std::nearbyint(zero))};
}

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
