// Files of a run's own, in its private directory, and locks of directories.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/file.h"

namespace detent {

/// A new file that only this user can read. Throws resource where it cannot be created, or is there.
UniqueFd create_working_file(const std::filesystem::path& path);

/// Writes all of `data` from `offset` on, beside what other threads write elsewhere. Throws resource naming `path`.
void write_at(int fd, std::span<const std::byte> data, std::uint64_t offset, const std::filesystem::path& path);

/// Keeps other runs from replacing files in a directory for as long as the descriptor lives. Invalid when another
/// process does not let go within ten seconds, or where directories cannot be locked.
UniqueFd lock_directory(const std::filesystem::path& directory);

}  // namespace detent
