// Pieces of serialized protobuf that are carried along untouched.
#pragma once

#include <cstdint>
#include <memory>
#include <protozero/exception.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/printable.h"

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

}  // namespace detent::onnx
