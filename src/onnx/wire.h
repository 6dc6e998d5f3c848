// Types of values, and the fields of protobuf messages that hold them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <protozero/exception.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace detent::onnx {

/// A view of serialized bytes together with whatever keeps them alive (a mapped file or an owned string). Cheap to
/// copy.
class Wire {
 public:
  Wire() = default;
  Wire(std::string_view view, std::shared_ptr<const void> owner) : view_(view), owner_(std::move(owner)) {}
  static Wire own(std::string bytes);

  std::string_view view() const noexcept { return view_; }
  const std::shared_ptr<const void>& owner() const noexcept { return owner_; }
  /// Whether there is no message at all; a message of no bytes is one.
  bool empty() const noexcept { return view_.data() == nullptr; }
  /// A view inside this one, sharing the owner.
  Wire part(std::string_view inner) const { return {inner, owner_}; }

 private:
  std::string_view view_;
  std::shared_ptr<const void> owner_;
};

/// One field of a message as it stands in the file: tag, length where there is one, and value.
struct RawField {
  std::uint32_t number = 0;
  Wire wire;
};

/// What is wrong with the protobuf data that protozero refused, in words for people.
std::string damage(const protozero::exception& cause);

/// Throws the bad_input that damaged protobuf data in `where` are for the user.
[[noreturn]] void throw_damaged(const std::string& where, const protozero::exception& cause);

/// Calls `read` so that what protozero throws comes out as bad_input.
template <class Read>
auto with_damage_as_bad_input(const std::string& where, Read read) {
  try {
    return read();
  } catch (const protozero::exception& e) {
    throw_damaged(where, e);
  }
}

/// The payload of a length-delimited raw field; empty for other wire types.
std::string_view payload_of(const RawField& field);

/// Builds raw fields of our own.
RawField string_field(std::uint32_t number, std::string_view value);
RawField varint_field(std::uint32_t number, std::int64_t value);

/// Replaces every field with the new one's number, or adds it.
void set_field(std::vector<RawField>& fields, const RawField& field);

/// ONNX element types (onnx.proto3, TensorProto.DataType) and what a reader must know of them.
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
