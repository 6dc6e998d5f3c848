// What this machine can do at best, measured and not looked up: the yardstick that a stage's figures are held against.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace detent::profile {

/// 0: could not be measured.
struct MachinePeaks {
  double flops_per_second = 0;         // float32, a fused multiply-add counts as two, all threads together
  double memory_bytes_per_second = 0;  // read from main memory, all threads together
  double disk_bytes_per_second = 0;    // of the directory's disk, as much written as read, past the page cache
  int threads = 0;                     // at work in this; no more than there are processors
  double bus_bytes_per_second = 0;     // between host and device; for whoever drives a device to fill in
};

/// Takes about 0.35 seconds, half of it for the disk. The figures are those of a machine that is otherwise idle as far
/// as that can be told: arithmetic and memory are rated by processor time, so that a busy machine does not look slow.
///
/// Uses up to 256 MiB of memory (four times the last-level cache, at least 64 MiB, at most a quarter of what is free)
/// and 64 MiB of disk in `directory`, in a file without a name: nothing is left, even by a killed process. Both would
/// show in a profile, so call it when the run's own figures have been taken (Profiler::finish). Never throws: what
/// cannot be measured is 0. `threads` below 1 counts as 1.
/// `room`: bytes of memory that may be taken; with less than a quarter of 64 MiB memory is not rated.
MachinePeaks measure_machine(int threads, const std::filesystem::path& directory,
                             std::uint64_t room = std::numeric_limits<std::uint64_t>::max()) noexcept;

}  // namespace detent::profile
