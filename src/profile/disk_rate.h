// How fast the disk of a directory is.
#pragma once

#include <filesystem>

namespace detent::profile {

/// Bytes per second when as much is written as read, 4 MiB at a time, past the page cache where the file system allows
/// it (O_DIRECT). Takes about 0.16 s, and 64 MiB at most, in a file without a name: nothing is left, even by a killed
/// process. 0 when the directory cannot be written. Throws bad_alloc only.
double disk_rate(const std::filesystem::path& directory);

}  // namespace detent::profile
