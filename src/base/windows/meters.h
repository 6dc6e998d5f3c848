// Private to the layer for Windows, and to profile/windows: what Windows counts of this process.
#pragma once

#include <cstdint>

namespace detent {
namespace windows {

struct ProcessCounters {
  std::uint64_t resident = 0, peak_resident = 0, private_bytes = 0;
  std::uint64_t read = 0, written = 0;  // by calls of the system, of caches too
  double cpu_seconds = 0;
};
/// What cannot be read is zero.
ProcessCounters process_counters() noexcept;

}  // namespace windows
}  // namespace detent
