// What this machine, or the cgroup that the process is in, has to give.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/error.h"

namespace detent::planning {

/// Bytes of memory that can be taken without swapping or being killed: the smaller of what is available on the machine
/// and what the cgroups (version 2 or 1) leave, file pages that can be dropped counted as free.
std::uint64_t available_memory();

/// Bytes that an ordinary user can still write to the file system of a directory.
std::uint64_t free_disk(const std::filesystem::path& directory);

/// The resource error for work that takes more than --memory-budget, with the smallest budget that works.
Error over_budget(std::string_view what, std::uint64_t needed, std::uint64_t budget);

}  // namespace detent::planning
