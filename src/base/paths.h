// Questions to the file system. Where the answer cannot be known (a folder that may not be searched, a name that is too
// long, a broken disk), they throw an Error that names the path: resource where the machine is at fault, else
// bad_input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace detent {
namespace paths {

/// Whether something is there; of a link, where it leads to.
bool exists(const std::filesystem::path& path);
/// Whether there is a directory; links are followed. False also where it cannot be told for want of rights: opening it
/// tells more. Throws resource where the machine is at fault, since a folder must not be taken for a file then.
bool is_folder(const std::filesystem::path& path);
/// The same of a regular file.
bool is_file(const std::filesystem::path& path);
/// The size of a regular file.
std::uint64_t size_of(const std::filesystem::path& file);
std::filesystem::file_time_type changed_at(const std::filesystem::path& file);
std::filesystem::path absolute(const std::filesystem::path& path);
/// Absolute and without links, as far as it exists.
std::filesystem::path resolved(const std::filesystem::path& path);

/// Where a symbolic link leads to, as it is written.
std::filesystem::path target_of(const std::filesystem::path& link);

/// Throws device where /proc/self/fd is not there: files are handed to the runtime, and judged, by their descriptors.
void require_proc_fd();

/// Makes the folder and those above it, as far as they are missing.
void make_folder(const std::filesystem::path& folder);
/// Removes a file, or a folder with all below it. What is not there is no failure.
void remove(const std::filesystem::path& path);
/// What is in the folder, in the order of names.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

}  // namespace paths
}  // namespace detent
