#include "cuda/peaks.h"

#include <exception>
#include <functional>

#include "cuda/launch.h"
#include "cuda/matmul.h"

namespace detent::cuda {
namespace {

constexpr int kTurns = 4;

/// Seconds of one turn of `work`, by the device's clock; what comes first is not counted.
double seconds_of(const Stream& stream, const std::function<void()>& work) {
  Event begin(true), end(true);
  work();
  begin.record(stream);
  for (int turn = 0; turn < kTurns; ++turn) work();
  end.record(stream);
  end.wait();
  return 1e-3 * end.milliseconds_since(begin) / kTurns;
}

double rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

double memory_rate(Device& device, std::size_t bytes) {
  const DeviceMemory from(device.memory(), bytes, "a measurement"), to(device.memory(), bytes, "a measurement");
  device.stream().clear(from.address(), bytes);
  const double seconds =
      seconds_of(device.stream(), [&] { device.stream().copy(to.address(), from.address(), bytes); });
  return rate(2 * static_cast<double>(bytes), seconds);
}

double bus_rate(Device& device, std::size_t bytes) {
  const PinnedMemory from(bytes);
  const DeviceMemory to(device.memory(), bytes, "a measurement");
  const double seconds =
      seconds_of(device.stream(), [&] { device.stream().upload(to.address(), from.as<std::byte>().data(), bytes); });
  return rate(static_cast<double>(bytes), seconds);
}

template <class T>
double product_rate(Device& device, DevicePrecision precision, std::int64_t n) {
  const auto count = static_cast<std::size_t>(n * n);
  const DeviceArray<T> a(device.memory(), count, "a measurement"), b(device.memory(), count, "a measurement");
  const DeviceArray<float> c(device.memory(), count, "a measurement");
  clear(device.stream(), a);  // zeros: what is not a number could be slower, or faster
  clear(device.stream(), b);
  const Matmul product(device, {.m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n}, precision);
  const double seconds = seconds_of(device.stream(), [&] { product.run(a.data(), b.data(), c.data()); });
  return rate(2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n), seconds);
}

profile::DevicePeaks measure(int number, DevicePrecision precision) {
  Device device(number, std::nullopt);
  return measure_peaks(device, precision);
}

}  // namespace

profile::DevicePeaks measure_peaks(Device& device, DevicePrecision precision, const PeakSizes& sizes) {
  profile::DevicePeaks peaks;
  peaks.memory_bytes_per_second = memory_rate(device, sizes.memory_bytes);
  peaks.bus_bytes_per_second = bus_rate(device, sizes.bus_bytes);
  peaks.flops_per_second = precision == DevicePrecision::bfloat16
                               ? product_rate<Bfloat16>(device, precision, sizes.matrix)
                               : product_rate<float>(device, precision, sizes.matrix);
  return peaks;
}

const profile::PeaksCalls& peaks_calls() {
  static constexpr profile::PeaksCalls kCalls{&measure};
  return kCalls;
}

}  // namespace detent::cuda
