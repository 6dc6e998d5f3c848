// Removing what a run made, also when memory and descriptors have run out.
#pragma once

#include <filesystem>

namespace detent {

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
