#include "data/floats.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "base/error.h"
#include "onnx/half.h"
#include "onnx/integer_types.h"

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

bool holds_numbers(onnx::DataType type) { return holds_floats(type) || onnx::holds_integers(type); }

std::vector<float> to_floats(const Array& array) {
  const auto widened = [](auto value) { return static_cast<float>(value); };
  switch (array.type) {
    case onnx::DataType::boolean:
    case onnx::DataType::uint8: return converted<std::uint8_t>(array.bytes, widened);
    case onnx::DataType::int8: return converted<std::int8_t>(array.bytes, widened);
    case onnx::DataType::int16: return converted<std::int16_t>(array.bytes, widened);
    case onnx::DataType::uint16: return converted<std::uint16_t>(array.bytes, widened);
    case onnx::DataType::int32: return converted<std::int32_t>(array.bytes, widened);
    case onnx::DataType::uint32: return converted<std::uint32_t>(array.bytes, widened);
    case onnx::DataType::int64: return converted<std::int64_t>(array.bytes, widened);
    case onnx::DataType::uint64: return converted<std::uint64_t>(array.bytes, widened);
    case onnx::DataType::float32: return converted<float>(array.bytes, [](float v) { return v; });
    case onnx::DataType::float64: return converted<double>(array.bytes, [](double v) { return static_cast<float>(v); });
    case onnx::DataType::float16: return converted<std::uint16_t>(array.bytes, onnx::from_float16);
    case onnx::DataType::bfloat16: return converted<std::uint16_t>(array.bytes, onnx::from_bfloat16);
    default: throw internal_error("floats were wanted of an array of another type");
  }
}

Array as_floats(const Array& array, onnx::DataType type) {
  using onnx::DataType;
  const bool low = type == DataType::float16 || type == DataType::bfloat16;
  if (array.type == type || !holds_floats(array.type) || (!low && type != DataType::float32)) return array;
  const auto values = to_floats(array);
  const auto owned = [&](auto numbers) {
    auto owner = std::make_shared<const decltype(numbers)>(std::move(numbers));
    return Array{type, array.shape, std::as_bytes(std::span(*owner)), owner};
  };
  if (!low) return owned(values);
  std::vector<std::uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(),
                 type == DataType::float16 ? onnx::to_float16 : onnx::to_bfloat16);
  return owned(std::move(halves));
}

}  // namespace detent::data
