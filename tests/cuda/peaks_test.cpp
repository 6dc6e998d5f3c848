// The arithmetic of the peaks: the host's clock says that every measurement takes a millisecond.
#include "cuda/peaks.h"

#include <gtest/gtest.h>

namespace detent::cuda {
namespace {

TEST(DevicePeaks, CountWhatMoved) {
  Device device(0, std::uint64_t{16} << 20);
  const PeakSizes sizes{4096, 8192, 16};
  for (const auto precision : {DevicePrecision::float32, DevicePrecision::tf32, DevicePrecision::bfloat16}) {
    const auto peaks = measure_peaks(device, precision, sizes);
    const double turns = 4 / 1e-3;  // a second
    EXPECT_DOUBLE_EQ(peaks.memory_bytes_per_second, 2 * 4096 * turns);
    EXPECT_DOUBLE_EQ(peaks.bus_bytes_per_second, 8192 * turns);
    EXPECT_DOUBLE_EQ(peaks.flops_per_second, 2.0 * 16 * 16 * 16 * turns);
  }
}

}  // namespace
}  // namespace detent::cuda
