// What this machine can do at best, measured and not looked up: the yardstick that a stage's figures are held against.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

#include "detent/device.h"

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
/// Uses 16 MiB of memory, and 64 MiB of disk in `directory`, in a file without a name: nothing is left, even by a
/// killed process. Both would show in a profile, so call it when the run's stages are over (Profiler::finish). Never
/// throws: what cannot be measured is 0. `threads` below 1 counts as 1. `room`: bytes of memory that may be taken; with
/// less than 16 MiB memory is not rated.
MachinePeaks measure_machine(int threads, const std::filesystem::path& directory,
                             std::uint64_t room = std::numeric_limits<std::uint64_t>::max()) noexcept;

/// Bytes per second when as much is written as read, 4 MiB at a time, past the page cache where the file system allows
/// it (O_DIRECT). Takes about 0.16 s, and 64 MiB at most, in a file without a name: nothing is left, even by a killed
/// process. 0 when the directory cannot be written. Throws bad_alloc only.
double disk_rate(const std::filesystem::path& directory);

// What a GPU can do at best, measured on it: the yardstick of stages that ran there.

/// 0: could not be measured.
struct DevicePeaks {
  double flops_per_second = 0;         // products of large matrices in a precision; a multiply-add counts as two
  double memory_bytes_per_second = 0;  // a large copy within its memory: as much read as written
  double bus_bytes_per_second = 0;     // a large copy from pinned memory of the host
};

/// Takes some tenths of a second and some hundred MiB of the device's memory, and shows in its meters: call it when the
/// run's own figures have been taken. Never throws: what cannot be measured is 0.
DevicePeaks measure_cuda(int device, DevicePrecision precision) noexcept;

/// What the plugin offers this room, by its entry symbol.
struct PeaksCalls {
  DevicePeaks (*measure)(int device, DevicePrecision precision);
};
using PeaksEntry = const PeaksCalls*(int version);  // null: the plugin is of another version
inline constexpr const char* kPeaksEntryName = "detent_cuda_peaks";
/// Raised when anything above changes. Plugin and binary come from the same compiler.
inline constexpr int kPeaksVersion = 1;

}  // namespace detent::profile
