// ONNX element types (onnx.proto3, TensorProto.DataType) and what a reader must know of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace detent::onnx {

enum class DataType : std::int32_t {
  undefined = 0,
  float32 = 1,
  uint8 = 2,
  int8 = 3,
  uint16 = 4,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  string = 8,
  boolean = 9,
  float16 = 10,
  float64 = 11,
  uint32 = 12,
  uint64 = 13,
  complex64 = 14,
  complex128 = 15,
  bfloat16 = 16,
  float8e4m3fn = 17,
  float8e4m3fnuz = 18,
  float8e5m2 = 19,
  float8e5m2fnuz = 20,
  uint4 = 21,
  int4 = 22,
  float4e2m1 = 23,
  float8e8m0 = 24,
  uint2 = 25,
  int2 = 26,
};

/// Bits of one element as stored in raw_data; 0 for string, undefined and unknown types.
int bits_of(DataType type) noexcept;

/// numpy-like name ("float32", "bool"); "type N" has no name and gives "unknown".
std::string_view name_of(DataType type) noexcept;

/// Product of the dimensions; nullopt when one is negative or the product overflows int64.
std::optional<std::int64_t> element_count(std::span<const std::int64_t> dims) noexcept;

/// Bytes that `count` elements take in raw_data (sub-byte types are packed, the last byte padded); nullopt on overflow.
std::optional<std::uint64_t> byte_count(DataType type, std::int64_t count) noexcept;

}  // namespace detent::onnx
