// Free functions over the operating system's own accounting of this process, its live children and directories.
// None of them throws for a figure that cannot be read: it counts as zero, because measuring must never end a run.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/file.h"

namespace detent::profile {

/// Bytes of memory resident now. resident = anonymous + file_backed; shared memory counts as file-backed.
struct Memory {
  std::uint64_t resident = 0;
  std::uint64_t anonymous = 0;
  std::uint64_t file_backed = 0;

  Memory& operator+=(const Memory& other) noexcept;
};

/// Reads the memory of the process that made it, again and again, at a tenth of the price of finding the figure anew.
class OwnMemory {
 public:
  OwnMemory();
  Memory now() const;

 private:
  UniqueFd statm_;
};

/// Bytes that went through the block layer; reads served by the page cache are not counted.
struct DiskTraffic {
  std::uint64_t read = 0;
  std::uint64_t written = 0;
};

/// The same for the traffic of the process that made it and of the children it has waited for.
class OwnDiskTraffic {
 public:
  OwnDiskTraffic();
  DiskTraffic now() const;

 private:
  UniqueFd io_;
};

/// The live children of this process, their children and so on. One system call when there are none. Children that
/// share this process's memory (between vfork and exec) are left out, or the same pages would count twice.
std::vector<pid_t> live_descendants();

/// A page that they share with others, as with this process, counts in parts that make one.
Memory memory_of(std::span<const pid_t> descendants);

/// Memory of this process plus that of `descendants`: a page that they share counts once, or a little more.
Memory memory_now(std::span<const pid_t> descendants);
inline Memory memory_now() { return memory_now(live_descendants()); }

/// The largest resident size this process alone has ever had, by the kernel's exact high-water mark (VmHWM).
std::uint64_t peak_resident();

/// User and system time of this process since it started, plus that of children it has waited for.
double cpu_seconds();

/// User and system time of the calling thread since it started.
double thread_cpu_seconds();

/// Seconds, since the machine started, in which some thread of any program waited for a processor (the kernel's
/// pressure stall information, "some"); 0 where the kernel does not tell.
double processor_pressure();

/// Traffic of this process since it started, plus its live `descendants` and the children it has waited for.
DiskTraffic disk_traffic(std::span<const pid_t> descendants);
inline DiskTraffic disk_traffic() { return disk_traffic(live_descendants()); }

/// The sum of the logical sizes of the regular files below `directory`. Links below it are never followed, files may
/// vanish meanwhile, and a directory that is missing or unreadable counts as empty.
std::uint64_t directory_size(const std::filesystem::path& directory);

}  // namespace detent::profile
