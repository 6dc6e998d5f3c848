// What Windows counts. No child is measured: detent starts none there. Mapped pages are what is resident beyond the
// process's own memory, and traffic is what was asked of the system, of which its cache may have answered some.
#include "profile/meters.h"

#include <algorithm>
#include <ctime>
#include <system_error>

#include "base/windows/meters.h"

namespace detent::profile {
namespace fs = std::filesystem;

std::vector<pid_t> live_descendants() { return {}; }

Memory& Memory::operator+=(const Memory& other) noexcept {
  resident += other.resident;
  anonymous += other.anonymous;
  file_backed += other.file_backed;
  return *this;
}

OwnMemory::OwnMemory() = default;

Memory OwnMemory::now() const {
  const auto counters = windows::process_counters();
  const auto own = std::min(counters.private_bytes, counters.resident);
  return {counters.resident, own, counters.resident - own};
}

OwnDiskTraffic::OwnDiskTraffic() = default;

DiskTraffic OwnDiskTraffic::now() const {
  const auto counters = windows::process_counters();
  return {counters.read, counters.written};
}

Memory memory_of(std::span<const pid_t>) { return {}; }
Memory memory_now(std::span<const pid_t>) { return OwnMemory().now(); }
std::uint64_t peak_resident() { return windows::process_counters().peak_resident; }
double cpu_seconds() { return windows::process_counters().cpu_seconds; }
DiskTraffic disk_traffic(std::span<const pid_t>) { return OwnDiskTraffic().now(); }
double processor_pressure() { return 0; }

double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

std::uint64_t directory_size(const fs::path& directory) {
  std::uint64_t sum = 0;
  std::error_code failed;
  for (fs::recursive_directory_iterator entry(directory, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    std::error_code gone;
    if (!entry->is_regular_file(gone)) continue;
    const auto size = entry->file_size(gone);
    if (!gone) sum += size;
  }
  return sum;
}

}  // namespace detent::profile
