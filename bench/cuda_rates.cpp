// How near the plugin's work for a layer comes to what the GPU can do: cuda_rates [DEVICE]. Memory's rate by a copy,
// then the fused step by the bytes it has to move, products by their operations, and a whole iteration of AdaRound.
#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "cuda/gram_rows.h"
#include "cuda/launch.h"
#include "cuda/step_kernels.h"
#include "shim/cuda_driver.h"

namespace {

using namespace detent;
using namespace detent::cuda;

constexpr int kTimes = 50;

/// Seconds that one piece of queued work takes.
template <class Work>
double seconds(Device& device, const Work& work) {
  work();
  device.stream().wait();
  Event begin(true), end(true);
  begin.record(device.stream());
  for (int i = 0; i < kTimes; ++i) work();
  end.record(device.stream());
  end.wait();
  return end.milliseconds_since(begin) / 1e3 / kTimes;
}

template <class T>
DeviceArray<T> array(Device& device, std::size_t count) {
  DeviceArray<T> made(device.memory(), count, "measuring");
  clear(device.stream(), made);
  return made;
}

double copy_rate(Device& device) {
  const std::size_t bytes = std::size_t{1} << 30;
  const auto from = array<std::byte>(device, bytes), to = array<std::byte>(device, bytes);
  return 2.0 * static_cast<double>(bytes) /
         seconds(device, [&] { device.stream().copy(to.data(), from.data(), bytes); });
}

double step_seconds(Device& device, std::size_t rows, std::size_t columns) {
  const std::size_t n = rows * columns;
  const auto v = array<float>(device, n), mean = array<float>(device, n), square = array<float>(device, n);
  const auto h = array<float>(device, n), slope = array<float>(device, n), offset = array<float>(device, n);
  const auto numbers = array<SoftRowNumbers>(device, rows);
  const auto iteration = array<unsigned>(device, 1);
  auto steps = array<SoftNumbers>(device, 1);
  const SoftNumbers step{0.1F, 1.0F, 0.01F, 10.0F};
  upload<SoftNumbers>(device.stream(), steps, std::span(&step, 1));
  device.stream().wait();
  const SoftStepKernel kernel{v.data(),      mean.data(),    square.data(), h.data(),         nullptr, slope.data(),
                              offset.data(), numbers.data(), steps.data(),  iteration.data(), rows,    columns};
  return seconds(device, [&] { launch(device.stream(), kernel, blocks_for(n / (columns % 4 == 0 ? 4 : 1))); });
}

double product_seconds(Device& device, std::size_t rows, std::size_t columns, DevicePrecision precision) {
  Product p;
  p.m = static_cast<std::int64_t>(rows);
  p.n = p.k = p.lda = p.ldb = p.ldc = static_cast<std::int64_t>(columns);
  const Matmul matmul(device, p, precision);
  const auto out = array<float>(device, rows * columns);
  if (precision == DevicePrecision::bfloat16) {
    const auto a = array<Bfloat16>(device, rows * columns), b = array<Bfloat16>(device, columns * columns);
    return seconds(device, [&] { matmul.run(a.data(), b.data(), out.data()); });
  }
  const auto a = array<float>(device, rows * columns), b = array<float>(device, columns * columns);
  return seconds(device, [&] { matmul.run(a.data(), b.data(), out.data()); });
}

int run(int number) {
  Device device(number, std::nullopt);
  const double copy = copy_rate(device);
  fmt::print("{}, {} multiprocessors; copies {:.0f} GB/s\n", device.facts().name, device.facts().multiprocessors,
             copy / 1e9);
  fmt::print("{:>6} {:>8} {:>10} {:>10} {:>10} {:>14} {:>14} {:>14}\n", "rows", "columns", "step us", "GB/s",
             "of copies", "float32 TF/s", "tf32 TF/s", "bf16 TF/s");
  // Layers of ResNet-50 and of a transformer.
  const std::vector<std::pair<std::size_t, std::size_t>> layers{{64, 576},   {128, 1152}, {256, 2304}, {512, 4608},
                                                                {2048, 512}, {768, 3072}, {3072, 768}, {4096, 4096}};
  for (const auto& [rows, columns] : layers) {
    const double step = step_seconds(device, rows, columns);
    const double bytes = 10.0 * sizeof(float) * static_cast<double>(rows * columns);  // six read, four written
    const double operations = 2.0 * static_cast<double>(rows) * static_cast<double>(columns * columns);
    const auto rate = [&](DevicePrecision p) { return operations / product_seconds(device, rows, columns, p) / 1e12; };
    fmt::print("{:>6} {:>8} {:>10.1f} {:>10.0f} {:>9.0f}% {:>14.1f} {:>14.1f} {:>14.1f}\n", rows, columns, step * 1e6,
               bytes / step / 1e9, 100 * bytes / step / copy, rate(DevicePrecision::float32),
               rate(DevicePrecision::tf32), rate(DevicePrecision::bfloat16));
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    const int number = count > 1 ? std::atoi(words[1]) : 0;
    shim::require_cuda({number}, shim::find_cuda_driver());
    return run(number);
  } catch (const Error& e) {
    fmt::print(stderr, "cuda_rates: {}; {}\n", e.what(), e.hint());
    return exit_code(e.kind());
  }
}
