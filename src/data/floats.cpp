#include "data/floats.h"

#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "onnx/half.h"

namespace detent::data {
namespace {

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
    case onnx::DataType::float16: return converted<std::uint16_t>(array.bytes, onnx::from_float16);
    case onnx::DataType::bfloat16: return converted<std::uint16_t>(array.bytes, onnx::from_bfloat16);
    default: throw internal_error("floats were wanted of an array of another type");
  }
}

}  // namespace detent::data
