// 128-bit fingerprints of data (XXH3), to tell whether two things are the same; not a defence against forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace detent {

struct Fingerprint {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  bool operator==(const Fingerprint&) const = default;
  /// Sum modulo 2^128: the fingerprint of a bag of things, whatever their order.
  Fingerprint& operator+=(const Fingerprint& other) noexcept;
  /// 32 hexadecimal digits.
  std::string text() const;
};

/// Takes data piece by piece; where one piece ends and the next begins does not matter.
class Hasher {
 public:
  Hasher();
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  void add(std::uint64_t number);
  Fingerprint result() const;

 private:
  struct Free {
    void operator()(void* state) const noexcept;
  };
  std::unique_ptr<void, Free> state_;
};

}  // namespace detent
