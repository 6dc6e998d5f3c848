#include "planning/limits.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "base/bytes.h"

namespace detent::planning {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::optional<std::uint64_t> read_number(const fs::path& path) {
  std::ifstream in(path);
  std::uint64_t value = 0;
  if (!(in >> value)) return std::nullopt;  // "max" too
  return value;
}

// A value of a file of "name value" lines, as memory.stat and /proc/meminfo are.
std::optional<std::uint64_t> read_entry(const fs::path& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    std::uint64_t value = 0;
    if (words >> key >> value && key == name) return value;
  }
  return std::nullopt;
}

std::uint64_t left(std::optional<std::uint64_t> limit, std::optional<std::uint64_t> used,
                   std::optional<std::uint64_t> droppable) {
  if (!limit || !used) return kUnlimited;
  const std::uint64_t held = *used - std::min(*used, droppable.value_or(0));
  return *limit - std::min(*limit, held);
}

// The limits of a group bind those below it, so all on the way to the root count.
std::uint64_t left_in_cgroups() {
  std::uint64_t least = kUnlimited;
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers.find("memory") == std::string::npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    // Texts: libstdc++ frees what it has not allocated when it cannot append to a path for lack of memory.
    for (std::string group = line.substr(second + 1);; group.resize(group.rfind('/'))) {
      if (group.find_last_not_of('/') == std::string::npos || group.front() != '/') group.clear();
      const std::string at = root + group + "/memory.";
      least = std::min(least, v2 ? left(read_number(at + "max"), read_number(at + "current"),
                                        read_entry(at + "stat", "inactive_file"))
                                 : left(read_number(at + "limit_in_bytes"), read_number(at + "usage_in_bytes"),
                                        read_entry(at + "stat", "total_inactive_file")));
      if (group.empty()) break;
    }
  }
  return least;
}

// Where there is no /proc.
std::uint64_t unused_memory() {
  const long pages = ::sysconf(_SC_AVPHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size) : kUnlimited;
}

}  // namespace

std::uint64_t available_memory() {
  constexpr std::uint64_t kKiB = 1024;
  const auto machine = read_entry("/proc/meminfo", "MemAvailable:");
  return std::min(machine ? *machine * kKiB : unused_memory(), left_in_cgroups());
}

std::uint64_t free_disk(const fs::path& directory) {
  std::error_code failed;
  const auto space = fs::space(directory, failed);
  return failed ? 0 : space.available;
}

Error over_budget(std::string_view what, std::uint64_t needed, std::uint64_t budget) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  const auto [need, left] = format_sizes(needed, budget);
  return resource_error(fmt::format("{} needs {} of memory, and the budget is {}", what, need, left),
                        fmt::format("the smallest --memory-budget that works is {}MiB", needed / kMiB + 1));
}

}  // namespace detent::planning
