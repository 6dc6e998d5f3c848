// What a GPU can do at best, measured by what the plugin itself uses of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device.h"
#include "profile/device_peaks.h"

namespace detent::cuda {

/// Large enough that starting takes no part, and for the memory that no cache holds it.
struct PeakSizes {
  std::size_t memory_bytes = std::size_t{512} << 20;
  std::size_t bus_bytes = std::size_t{64} << 20;
  std::int64_t matrix = 8192;  // rows and columns
};

/// Throws device, and resource where the device's memory is full.
profile::DevicePeaks measure_peaks(Device& device, DevicePrecision precision, const PeakSizes& sizes = {});

const profile::PeaksCalls& peaks_calls();

}  // namespace detent::cuda
