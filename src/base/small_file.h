// Reading files of settings and state whole: what a user writes by hand, and what a run leaves for the next one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace detent {

inline constexpr std::uint64_t kSmallFile = std::uint64_t{64} << 20;

/// The contents of a regular file of at most kSmallFile bytes. Does not wait for a writer, as reading a FIFO would.
/// `role` names the file's part in messages. Throws bad_input for anything else, and
/// resource where the machine is at fault.
std::string read_small_file(const std::filesystem::path& path, const std::string& role);

/// The same of an open file.
std::string read_small_file(int fd, const std::filesystem::path& path, const std::string& role);

}  // namespace detent
