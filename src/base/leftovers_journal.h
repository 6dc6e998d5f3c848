// Leftovers of a process, told to one that outlives it.
#pragma once

#include <filesystem>

namespace detent {

/// From here on, which paths are and were Leftovers of this process is written down in a file, opened for that.
void keep_journal_of_leftovers(int file) noexcept;

/// What is written down of a path: that it is one of the Leftovers, or no longer. The caller has their lock. Without
/// memory for it, or a journal, it is not told.
inline constexpr char kLeft = '+', kReleased = '-';
void note_in_journal(char what, const std::filesystem::path& path) noexcept;

/// Removes what a process that is no more had as Leftovers when it ended, by its journal.
void remove_leftovers_of(int journal);

}  // namespace detent
