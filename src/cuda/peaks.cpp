#include "cuda/peaks.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "cuda/launch.h"
#include "cuda/matmul.h"

namespace detent::cuda {
namespace {

constexpr const char* kWhat = "a measurement";
constexpr int kTurns = 4;
constexpr std::size_t kLeastBytes = std::size_t{1} << 20;
constexpr std::int64_t kLeastMatrix = 256;

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

/// `rate_at(size, &seconds)` for sizes that double from `size` on, until a turn takes long enough, or `most` is passed;
/// the rate at the last.
template <class Size, class RateAt>
double grown_rate(Size size, Size most, double enough, const RateAt& rate_at) {
  double seconds = 0;
  double found = rate_at(std::min(size, most), seconds);
  while (2 * size <= most && seconds < enough) {
    size *= 2;
    found = rate_at(size, seconds);
  }
  return found;
}

double memory_rate(Device& device, std::size_t most, double enough) {
  return grown_rate(kLeastBytes, most, enough, [&](std::size_t bytes, double& seconds) {
    const DeviceMemory from(device.memory(), bytes, kWhat), to(device.memory(), bytes, kWhat);
    device.stream().clear(from.address(), bytes);
    seconds = seconds_of(device.stream(), [&] { device.stream().copy(to.address(), from.address(), bytes); });
    return rate(2 * static_cast<double>(bytes), seconds);
  });
}

double bus_rate(Device& device, std::size_t most, double enough) {
  return grown_rate(kLeastBytes, most, enough, [&](std::size_t bytes, double& seconds) {
    const HostMemory from(bytes);
    const DeviceMemory to(device.memory(), bytes, kWhat);
    seconds =
        seconds_of(device.stream(), [&] { device.stream().upload(to.address(), from.as<std::byte>().data(), bytes); });
    return rate(static_cast<double>(bytes), seconds);
  });
}

template <class T>
double product_rate(Device& device, DevicePrecision precision, std::int64_t most, double enough) {
  return grown_rate(kLeastMatrix, most, enough, [&](std::int64_t n, double& seconds) {
    const auto count = static_cast<std::size_t>(n * n);
    const DeviceArray<T> a(device.memory(), count, kWhat), b(device.memory(), count, kWhat);
    const DeviceArray<float> c(device.memory(), count, kWhat);
    clear(device.stream(), a);  // zeros: what is not a number could be slower, or faster
    clear(device.stream(), b);
    const Matmul product(device, {.m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n}, precision);
    seconds = seconds_of(device.stream(), [&] { product.run(a.data(), b.data(), c.data()); });
    return rate(2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n), seconds);
  });
}

profile::DevicePeaks measure(int number, DevicePrecision precision) {
  Device device(number, std::nullopt);
  return measure_peaks(device, precision);
}

}  // namespace

profile::DevicePeaks measure_peaks(Device& device, DevicePrecision precision, const PeakLimits& limits) {
  const std::uint64_t left = (device.memory().limit() - device.memory().used()) / 8;
  const auto bytes = [&](std::size_t most) { return static_cast<std::size_t>(std::min<std::uint64_t>(most, left)); };
  const auto square = static_cast<std::int64_t>(std::sqrt(static_cast<double>(left / sizeof(float))));
  const auto matrix = std::min(limits.most_matrix, square);
  profile::DevicePeaks peaks;
  peaks.memory_bytes_per_second = memory_rate(device, bytes(limits.most_memory_bytes), limits.enough_seconds);
  peaks.bus_bytes_per_second = bus_rate(device, bytes(limits.most_bus_bytes), limits.enough_seconds);
  peaks.flops_per_second = precision == DevicePrecision::bfloat16
                               ? product_rate<Bfloat16>(device, precision, matrix, limits.enough_seconds)
                               : product_rate<float>(device, precision, matrix, limits.enough_seconds);
  return peaks;
}

const profile::PeaksCalls& peaks_calls() {
  static constexpr profile::PeaksCalls kCalls{&measure};
  return kCalls;
}

}  // namespace detent::cuda
