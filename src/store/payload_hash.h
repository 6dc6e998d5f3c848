// The checksum of a record's payload: XXH3-64, taken piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace detent::store {

class PayloadHash {
 public:
  PayloadHash();
  void add(std::span<const std::byte> bytes) noexcept;
  std::uint64_t result() const noexcept;

 private:
  struct Free {
    void operator()(void* state) const noexcept;
  };
  std::unique_ptr<void, Free> state_;
};

}  // namespace detent::store
