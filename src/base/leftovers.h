// Files and folders that must not stay when the process ends without unwinding.
#pragma once

#include <filesystem>
#include <mutex>

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

// What is made and is to be removed when the process ends is made as it becomes one of the leftovers.

/// While the lock lives, remove_leftovers() waits: nothing is made that it does not know of. Who asks for it once
/// remove_leftovers() has begun waits for ever.
std::unique_lock<std::recursive_mutex> hold_leftovers();

/// From here on, which paths are and were Leftovers of this process is written down in a file, opened for that.
void keep_journal_of_leftovers(int file) noexcept;

/// What is written down of a path: that it is one of the Leftovers, or no longer. The caller has their lock. Without
/// memory for it, or a journal, it is not told.
inline constexpr char kLeft = '+', kReleased = '-';
void note_in_journal(char what, const std::filesystem::path& path) noexcept;

/// Removes what a process that is no more had as Leftovers when it ended, by its journal.
void remove_leftovers_of(int journal);

}  // namespace detent
