// Questions to the file system. Where the answer cannot be known (a folder that may not be searched, a name that is too
// long, a broken disk), they throw an Error that names the path: resource where the machine is at fault, else
// bad_input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <system_error>
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

/// Whether open files have names by which the runtime can be handed what is open, and not what stands at a path by
/// then: /proc/self/fd/DESCRIPTOR. Throws device where /proc is not there; false on Windows, where there are none.
bool names_open_files();
/// The path of what is open, with every link resolved. Throws device where /proc is not there.
std::filesystem::path of_open_file(int descriptor, std::error_code& failed);

/// Makes the folder and those above it, as far as they are missing.
void make_folder(const std::filesystem::path& folder);
/// Removes a file, or a folder with all below it. What is not there is no failure.
void remove(const std::filesystem::path& path);
/// What is in the folder, in the order of names.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

}  // namespace paths

/// Keeps the descriptors back that remove_tree() needs, once for the process; false with errno when there are none. To
/// be called before something is made that has to be removed.
bool reserve_descriptors() noexcept;

/// The file that says whose a run's directory is. It is emptied first and goes last, so that a directory whose removal
/// was cut short is told from others, and from one that still counts.
inline constexpr const char* kIdentityFile = "run.json";

/// Removes a file or a link, or a folder with all below it; links are not followed. Takes no memory, and the reserved
/// descriptors where there are no others. False when something could not be removed; what is not there is no failure.
/// Paths longer than PATH_MAX stay.
bool remove_tree(const std::filesystem::path::value_type* path) noexcept;

}  // namespace detent
