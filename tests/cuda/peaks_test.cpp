// How peaks are measured, by a clock that the test sets.
#include "cuda/plugin_calls.h"

#include <gtest/gtest.h>

#include <ctime>

#include "cuda/on_host/clock.h"

namespace detent::cuda {
namespace {

/// Each measurement takes so many milliseconds.
class SetClock {
 public:
  explicit SetClock(double step) : before_(event_clock()) {
    event_clock() = [step, now = 0.0]() mutable { return now += step; };
  }
  SetClock(const SetClock&) = delete;
  SetClock& operator=(const SetClock&) = delete;
  ~SetClock() { event_clock() = before_; }

 private:
  std::function<double()> before_;
};

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr PeakLimits kLimits{0.9e-3 / 4, 4 * kMiB, 2 * kMiB, 64};

TEST(DevicePeaks, SlowDevicesAreMeasuredAtTheSmallestSizes) {
  Device device(0, 64 * kMiB);
  const SetClock clock(1);
  for (const auto precision : {DevicePrecision::float32, DevicePrecision::tf32, DevicePrecision::bfloat16}) {
    const auto peaks = measure_peaks(device, precision, kLimits);
    const double turns = 4 / 1e-3;  // a second
    EXPECT_DOUBLE_EQ(peaks.memory_bytes_per_second, 2.0 * kMiB * turns);
    EXPECT_DOUBLE_EQ(peaks.bus_bytes_per_second, 1.0 * kMiB * turns);
    EXPECT_DOUBLE_EQ(peaks.flops_per_second, 2.0 * 64 * 64 * 64 * turns);
  }
}

TEST(DevicePeaks, FastDevicesAreMeasuredAtTheLargest) {
  Device device(0, 64 * kMiB);
  const SetClock clock(0.5);
  const auto peaks = measure_peaks(device, DevicePrecision::float32, kLimits);
  const double turns = 4 / 0.5e-3;
  EXPECT_DOUBLE_EQ(peaks.memory_bytes_per_second, 2.0 * 4 * kMiB * turns);
  EXPECT_DOUBLE_EQ(peaks.bus_bytes_per_second, 2.0 * kMiB * turns);
}

TEST(DevicePeaks, TakeNoMoreThanIsLeft) {
  Device device(0, 8 * kMiB);
  const SetClock clock(0.5);
  measure_peaks(device, DevicePrecision::float32, kLimits);
  EXPECT_LE(device.memory().peak(), 8 * kMiB);
  EXPECT_EQ(device.memory().used(), 0U);
}

TEST(DevicePeaks, AreQuickWhereProductsAreSlow) {
  Device device(0, std::uint64_t{1} << 30);
  const auto begin = std::clock();
  const auto peaks = measure_peaks(device, DevicePrecision::float32);
  EXPECT_LT(std::clock() - begin, 60 * CLOCKS_PER_SEC);
  EXPECT_GT(peaks.flops_per_second, 1e4);
  EXPECT_GT(peaks.memory_bytes_per_second, 1e6);
  EXPECT_GT(peaks.bus_bytes_per_second, 1e6);
}

}  // namespace
}  // namespace detent::cuda
