// Files and folders that must not stay when the process ends without unwinding.
#pragma once

#include <filesystem>

namespace detent {

/// While the object lives, remove_leftovers() removes the path with all below it. Move-only.
class Leftover {
 public:
  Leftover() = default;
  explicit Leftover(const std::filesystem::path& path);
  Leftover(Leftover&& other) noexcept;
  Leftover& operator=(Leftover&& other) noexcept;
  ~Leftover() { release(); }

  /// It may stay.
  void release() noexcept;

 private:
  const void* entry_ = nullptr;
};

/// Removes what this process would leave, for a process that is about to end. From then on threads that are
/// about to make a Leftover wait for ever. Not for signal handlers.
void remove_leftovers() noexcept;

}  // namespace detent
