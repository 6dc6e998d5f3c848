#include "data/floats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace detent::data {
namespace {

float from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float value = std::ldexp(static_cast<float>(mantissa + (exponent > 0 ? 1024 : 0)), std::max(exponent, 1) - 25);
  if (exponent == 31) value = mantissa > 0 ? NAN : INFINITY;
  return bits >> 15 != 0 ? -value : value;
}

float from_bfloat16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

template <class T, class Fn>
std::vector<float> converted(std::span<const std::byte> bytes, const Fn& to_float) {
  std::vector<float> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = to_float(value);
  }
  return values;
}

}  // namespace

bool holds_floats(onnx::DataType type) {
  using onnx::DataType;
  return type == DataType::float32 || type == DataType::float64 || type == DataType::float16 ||
         type == DataType::bfloat16;
}

std::vector<float> to_floats(const Array& array) {
  switch (array.type) {
    case onnx::DataType::float32: return converted<float>(array.bytes, [](float v) { return v; });
    case onnx::DataType::float64: return converted<double>(array.bytes, [](double v) { return static_cast<float>(v); });
    case onnx::DataType::float16: return converted<std::uint16_t>(array.bytes, from_half);
    case onnx::DataType::bfloat16: return converted<std::uint16_t>(array.bytes, from_bfloat16);
    default: throw internal_error("floats were wanted of an array of another type");
  }
}

}  // namespace detent::data
