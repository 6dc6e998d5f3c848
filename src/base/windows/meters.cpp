#include "base/windows/meters.h"

#include <windows.h>

#include <psapi.h>

#include <algorithm>

namespace detent {
namespace windows {
namespace {

double seconds(const FILETIME& time) {
  return static_cast<double>(std::uint64_t{time.dwHighDateTime} << 32 | time.dwLowDateTime) * 1e-7;
}

}  // namespace

ProcessCounters process_counters() noexcept {
  const HANDLE self = ::GetCurrentProcess();
  ProcessCounters counters;
  PROCESS_MEMORY_COUNTERS memory{};
  if (::K32GetProcessMemoryInfo(self, &memory, sizeof memory) != 0) {
    counters.resident = memory.WorkingSetSize;
    counters.peak_resident = memory.PeakWorkingSetSize;
    counters.private_bytes = memory.PagefileUsage;
  }
  IO_COUNTERS transferred{};
  if (::GetProcessIoCounters(self, &transferred) != 0) {
    counters.read = transferred.ReadTransferCount;
    counters.written = transferred.WriteTransferCount;
  }
  FILETIME made{}, ended{}, kernel{}, user{};
  if (::GetProcessTimes(self, &made, &ended, &kernel, &user) != 0)
    counters.cpu_seconds = seconds(kernel) + seconds(user);
  return counters;
}

}  // namespace windows
}  // namespace detent
