// How near the plugin's work for a layer comes to what the GPU can do: bench_cuda_rates [DEVICE]. The fused step by the
// bytes it has to move beside a copy within memory; products as the plugin makes them beside the fastest of the ways
// that cuBLAS has for them. Exit status 1 when a bound is missed.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "calibration/statistics.h"
#include "cuda/gram_rows.h"
#include "cuda/launch.h"
#include "cuda/observe_kernel.h"
#include "cuda/step_kernels.h"
#include "shim/cuda_driver.h"

namespace {

using namespace detent;
using namespace detent::cuda;

constexpr int kTimes = 50;
constexpr int kChoices = 16;               // of cuBLAS, each timed
constexpr std::size_t kLarge = 1'000'000;  // weights of layers from which on a step is due to keep memory busy
constexpr double kStepShare = 0.8, kProductShare = 0.7;

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

double step_seconds(Device& device, std::size_t rows, std::size_t fan_in) {
  const std::size_t n = rows * fan_in;
  const auto v = array<float>(device, n), mean = array<float>(device, n), square = array<float>(device, n);
  const auto h = array<float>(device, n), slope = array<float>(device, n), offset = array<float>(device, n);
  const auto numbers = array<AdaRoundBlockNumbers>(device, rows);
  const auto iteration = array<unsigned>(device, 1);
  auto steps = array<AdaRoundNumbers>(device, 1);
  const AdaRoundNumbers step{0.1F, 1.0F, 0.01F, 10.0F};
  upload<AdaRoundNumbers>(device.stream(), steps, std::span(&step, 1));
  device.stream().wait();
  const AdaRoundStepKernel kernel{v.data(),         mean.data(),  square.data(), h.data(),       nullptr,
                                  nullptr,          slope.data(), offset.data(), numbers.data(), steps.data(),
                                  iteration.data(), {},           rows,          fan_in};
  return seconds(device, [&] { launch(device.stream(), kernel, blocks_for_packs(rows, fan_in, {})); });
}

template <class T>
double product_seconds(Device& device, const Product& p, DevicePrecision precision, int choice) {
  const Matmul matmul(device, p, precision, choice);
  const auto count = [](std::int64_t rows, std::int64_t fan_in) { return static_cast<std::size_t>(rows * fan_in); };
  const auto a = array<T>(device, count(p.m, p.k)), b = array<T>(device, count(p.k, p.n));
  const auto c = array<float>(device, count(p.m, p.n));
  return seconds(device, [&] { matmul.run(a.data(), b.data(), c.data()); });
}

struct ProductRates {
  double own = 0;   // operations a second
  double best = 0;  // of all ways of the library
};

ProductRates product_rates(Device& device, std::size_t rows, std::size_t fan_in, DevicePrecision precision) {
  Product p;
  p.m = static_cast<std::int64_t>(rows);
  p.n = p.k = p.lda = p.ldb = p.ldc = static_cast<std::int64_t>(fan_in);
  const double operations = 2.0 * static_cast<double>(rows) * static_cast<double>(fan_in * fan_in);
  ProductRates rates;
  for (int choice = 0; choice < kChoices; ++choice) {
    try {
      const double time = precision == DevicePrecision::bfloat16
                              ? product_seconds<Bfloat16>(device, p, precision, choice)
                              : product_seconds<float>(device, p, precision, choice);
      rates.best = std::max(rates.best, operations / time);
      if (choice == 0) rates.own = operations / time;
    } catch (const Error& e) {
      if (choice == 0 || e.kind() != ErrorKind::device) throw;
      break;  // the library has no more
    }
  }
  return rates;
}

/// Bytes a second that the observers read of activations behind a Relu: half of them zeros.
double observer_rate(Device& device, std::size_t count, bool histogram) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> host(count);
  for (float& value : host) value = std::max(normal(random), 0.0F);
  auto values = array<float>(device, count);
  upload<float>(device.stream(), values, host);
  const auto cell = array<calibration::RunCell>(device, 1);
  const auto table = array<std::uint32_t>(device, calibration::Histogram::kTable);
  device.stream().wait();
  const unsigned blocks = observe_blocks(count, device.facts().multiprocessors);
  return sizeof(float) * static_cast<double>(count) / seconds(device, [&] {
           if (histogram)
             launch(device.stream(), Observe<true>{values.data(), count, cell.data(), table.data()}, blocks,
                    kObserveBytes<true>);
           else
             launch(device.stream(), Observe<false>{values.data(), count, cell.data(), nullptr}, blocks,
                    kObserveBytes<false>);
         });
}

bool judge(const std::string& what, double share, double bound) {
  fmt::print("{} {}: {:.0f} %, bound {:.0f} %\n", share >= bound ? "met   " : "MISSED", what, 100 * share, 100 * bound);
  return share >= bound;
}

int run(int number) {
  Device device(number, std::nullopt);
  const double copy = copy_rate(device);
  fmt::print("{}, {} multiprocessors; copies {:.0f} GB/s\n", device.facts().name, device.facts().multiprocessors,
             copy / 1e9);
  fmt::print("{:>6} {:>8} {:>10} {:>10} {:>10}   {}\n", "rows", "fan_in", "step us", "GB/s", "of copies",
             "products in float32, tf32, bfloat16: TF/s (of the best way)");
  double step_share = 1, product_share = 1;  // the least
  // Layers of ResNet-50 and of a transformer.
  const std::vector<std::pair<std::size_t, std::size_t>> layers{{64, 576},   {128, 1152}, {256, 2304}, {512, 4608},
                                                                {2048, 512}, {768, 3072}, {3072, 768}, {4096, 4096}};
  for (const auto& [rows, fan_in] : layers) {
    const double step = step_seconds(device, rows, fan_in);
    const double rate = 10.0 * sizeof(float) * static_cast<double>(rows * fan_in) / step;  // six read, four written
    if (rows * fan_in >= kLarge) step_share = std::min(step_share, rate / copy);
    std::string products;
    for (const auto precision : {DevicePrecision::float32, DevicePrecision::tf32, DevicePrecision::bfloat16}) {
      const auto [own, best] = product_rates(device, rows, fan_in, precision);
      product_share = std::min(product_share, own / best);
      products += fmt::format("{:>8.1f} ({:>3.0f} %)", own / 1e12, 100 * own / best);
    }
    fmt::print("{:>6} {:>8} {:>10.1f} {:>10.0f} {:>8.0f} % {}\n", rows, fan_in, step * 1e6, rate / 1e9,
               100 * rate / copy, products);
  }
  for (const std::size_t count : {std::size_t{1} << 18, std::size_t{1} << 26}) {
    for (const bool histogram : {false, true}) {
      const double rate = observer_rate(device, count, histogram);
      fmt::print("observers of {} {}: {:.0f} GB/s, {:.0f} % of a copy's rate\n", format_size(count * sizeof(float)),
                 histogram ? "with histograms" : "without histograms", rate / 1e9, 100 * rate / copy);
    }
  }
  const bool steps = judge("steps of layers of 10^6 weights and more, of a copy's rate", step_share, kStepShare);
  const bool products = judge("products, of cuBLAS's own best", product_share, kProductShare);
  return steps && products ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  try {
    const int number = count > 1 ? std::atoi(words[1]) : 0;
    shim::require_cuda({number}, shim::find_cuda_driver());
    return run(number);
  } catch (const Error& e) {
    fmt::print(stderr, "bench_cuda_rates: {}; {}\n", e.what(), e.hint());
    return exit_code(e.kind());
  }
}
