// Leftovers of a process, told to one that outlives it.
#pragma once

namespace detent {

/// From here on, which paths are and were Leftovers of this process is written down in a file, opened for that.
void keep_journal_of_leftovers(int file) noexcept;

/// Removes what a process that is no more had as Leftovers when it ended, by its journal.
void remove_leftovers_of(int journal);

}  // namespace detent
