// The heap as the operating system sees it.
#pragma once

#include <cstddef>

namespace detent {

/// Gives back the pages of the heap that nothing uses, where the C library can.
void trim_heap() noexcept;

/// While one is alive, large blocks have pages of their own, which go back as soon as they are freed. Else they may lie
/// between others and stay. For reading models: copies of weights come and go. No effect where the C library cannot.
class LargeBlocksApart {
 public:
  LargeBlocksApart() noexcept;
  ~LargeBlocksApart();
  LargeBlocksApart(const LargeBlocksApart&) = delete;
  LargeBlocksApart& operator=(const LargeBlocksApart&) = delete;
};

/// Memory at a multiple of `alignment`, of which `size` is one; null when there is none. For free_aligned().
void* allocate_aligned(std::size_t alignment, std::size_t size) noexcept;
void free_aligned(void* block) noexcept;

}  // namespace detent
