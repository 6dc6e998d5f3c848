// The elements of a float32 array, and those of other floating-point types as such.
#pragma once

#include <span>
#include <vector>

#include "data/sample.h"

namespace detent::data {

inline std::span<const float> floats(const Array& array) {
  return {reinterpret_cast<const float*>(array.bytes.data()), array.bytes.size() / sizeof(float)};
}

/// Whether a type is one of floating point, of 16, 32 or 64 bits.
bool holds_floats(onnx::DataType type);
/// One of these, a type of integers of 8 bits or more, or bool.
bool holds_numbers(onnx::DataType type);
/// Of an array of such a type.
std::vector<float> to_floats(const Array& array);
/// The same without a copy where the array has float32; else `owned` holds them.
inline std::span<const float> floats_in(const Array& array, std::vector<float>& owned) {
  if (array.type == onnx::DataType::float32) return floats(array);
  owned = to_floats(array);
  return owned;
}
/// An array of such a type as float16, bfloat16 or float32; any other as it is.
Array as_floats(const Array& array, onnx::DataType type);

}  // namespace detent::data
