// What a GPU can do at best, measured on it: the yardstick of stages that ran there.
#pragma once

#include "detent/device.h"

namespace detent::profile {

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
