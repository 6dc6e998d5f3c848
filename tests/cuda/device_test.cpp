#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <random>
#include <set>

#include "calibration/device_observers.h"
#include "calibration/observers.h"
#include "calibration/statistics_file.h"
#include "cuda/device.h"
#include "cuda/on_host/clock.h"
#include "cuda/plugin_calls.h"
#include "cuda/support.h"
#include "shim/cuda_driver.h"
#include "store/device_route.h"
#include "store/support.h"

namespace detent::cuda {
namespace {

// The plugin itself on a GPU: skipped where there is none.

namespace fs = std::filesystem;
using namespace calibration;

class RealDevice : public testing::Test {
 protected:
  void SetUp() override {
    const auto driver = shim::find_cuda_driver();
    if (driver.devices == 0) GTEST_SKIP() << "skipped: " << driver.reason;
#ifdef CUDA_PLUGIN
    ::setenv("DETENT_CUDA_PLUGIN", CUDA_PLUGIN, 1);
#else
    GTEST_SKIP() << "the plugin was not built";
#endif
  }
  void TearDown() override { ::unsetenv("DETENT_CUDA_PLUGIN"); }
};

/// Of every exponent, and typical activations, with whatever is special among floats.
std::vector<float> values_of(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i)
    values[i] =
        i % 3 == 0 ? std::bit_cast<float>(static_cast<std::uint32_t>(random())) : std::max(normal(random), 0.0F);
  return values;
}

TEST_F(RealDevice, ObserversAgreeWithTheHosts) {
  const TempDir folder(fs::current_path());
  store::SpoolOptions spool_options;
  spool_options.directory = folder.path();
  spool_options.residency = store::Residency::disk;
  store::Spool spool(spool_options);
  const auto lane = spool.open("lane");
  const auto storage = store::open_cuda_storage(0, GdsMode::off, folder.path());
  for (const bool histogram : {true, false}) {
    const ObserverOptions options{histogram, histogram, true, 1};
    const auto device = open_cuda({.number = 0, .memory_budget = {}, .taps = 1, .tables = histogram});
    DeviceObservers there({{"x", "graph input"}}, options, *device);
    Observers here({{"x", "graph input"}}, options);
    const auto serial = [](std::size_t parts, const auto& fn) {
      for (std::size_t p = 0; p < parts; ++p) fn(p);
    };
    std::size_t sample = 0;
    for (const std::size_t size : {1UL, 1000UL, 1UL << 16, (1UL << 24) + 3}) {
      const auto values = values_of(size, static_cast<unsigned>(size));
      const auto bytes = std::as_bytes(std::span(values));
      spool.put(lane, sample, {{onnx::DataType::float32, {static_cast<std::int64_t>(size)}, bytes, nullptr}});
      spool.sync();
      const auto resting = spool.resting(lane, sample++).value();
      void* const at = storage->memory(resting.size);
      storage->read(resting, at);
      there.receive_on_device(0, {onnx::DataType::float32, {}, at, bytes.size()});
      there.end_sample();
      here.receive(0, {onnx::DataType::float32, {}, bytes}, serial);
    }
    EXPECT_EQ(encode(there.statistics()), encode(here.statistics()));
  }
}

TEST_F(RealDevice, PastTheHostComeTheSameBytes) {
  const TempDir folder(fs::current_path());
  std::unique_ptr<store::DeviceStorage> storage;
  try {
    storage = store::open_cuda_storage(0, GdsMode::on, folder.path());
  } catch (const Error& e) {
    GTEST_SKIP() << "skipped: " << e.what();
  }
  store::SpoolOptions spool_options;
  spool_options.directory = folder.path();
  spool_options.residency = store::Residency::disk;
  store::Spool spool(spool_options);
  const auto lane = spool.open("lane");
  const auto values = values_of(std::size_t{5} << 20, 1);
  const auto bytes = std::as_bytes(std::span(values));
  spool.put(lane, 0, {{onnx::DataType::float32, {static_cast<std::int64_t>(values.size())}, bytes, nullptr}});
  spool.sync();
  const auto resting = spool.resting(lane, 0).value();
  void* const at = storage->memory(resting.size);
  storage->read(resting, at);
  // What stands there is told by its statistics.
  const auto device = open_cuda({.number = 0, .memory_budget = {}, .taps = 1, .tables = true});
  const ObserverOptions options{true, false, true, 1};
  DeviceObservers there({{"x", "graph input"}}, options, *device);
  there.receive_on_device(0, {onnx::DataType::float32, {}, at, bytes.size()});
  there.end_sample();
  Observers here({{"x", "graph input"}}, options);
  here.receive(0, {onnx::DataType::float32, {}, bytes}, [](std::size_t parts, const auto& fn) {
    for (std::size_t p = 0; p < parts; ++p) fn(p);
  });
  EXPECT_EQ(encode(there.statistics()), encode(here.statistics()));
}

// What the solver tells a run's log, on a device that is the host: its events have the host's clock.

using profile::DeviceActivity;

constexpr std::size_t kSamples = 5, kIterations = 70;

/// Both forms of a layer, with sums and errors.
void solve_all(solve::LayerSolver& solver, const Layer& layer, DeviceActivity* activity) {
  FinetuneConfig config;
  config.solver = WeightSolver::adaround;
  config.num_iterations = kIterations;
  config.batch_size = 1;
  if (activity != nullptr) activity->begin("a layer");
  auto sums = solver.sums(layer.geometry, 1);
  for (std::size_t i = 0; i < kSamples; ++i) sums->add(layer.shape, layer.inputs[i], layer.targets[i]);
  const solve::GramForm form = sums->take();
  sums.reset();
  solver.solve(layer.weights, form, layer.bias, config, {});
  InMemory samples(layer);
  const auto solution = solver.solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config, {});
  solver.reconstruction_error(layer.weights, layer.geometry, solution, samples, {});
}

DeviceConfig on(std::vector<int> numbers) {
  DeviceConfig config;
  config.cuda = std::move(numbers);
  config.memory_budget = std::uint64_t{1} << 30;
  return config;
}

TEST(Activity, TellsWhatEachLaneDid) {
  const Layer layer = make_layer(solve::convolution(4, 6, 1, {3, 3}), {1, 4, 9, 9}, kSamples, 4, 7);
  DeviceActivity activity(DeviceActivity::Clock::now());
  const auto solver = make_solver(on({0}), kernels(), &activity);
  solve_all(*solver, layer, &activity);
  std::map<std::pair<DeviceLane, std::string>, profile::DeviceTotal> found;
  for (const auto& total : activity.totals()) found[{total.lane, total.what}] = total;
  const std::uint64_t sample = sizeof(float) * (layer.inputs[0].size() + layer.targets[0].size());
  const auto& copies = found[{DeviceLane::copy, "sample"}];
  // Once for the sums, once for those of the descent after mini-batches, once for an iteration, once for errors, and
  // once for each layout that was tried.
  EXPECT_EQ(copies.count, 2 * kSamples + kIterations + kSamples + 2);
  // With those of the descent come the numbers of their 49 positions.
  EXPECT_EQ(copies.amount.bytes, copies.count * sample + kSamples * 49 * sizeof(std::uint32_t));
  EXPECT_EQ((found[{DeviceLane::gather, "sample into pinned memory"}].amount.bytes), copies.amount.bytes);
  EXPECT_EQ((found[{DeviceLane::compute, "sums over samples"}].count), 2 * kSamples);
  EXPECT_EQ((found[{DeviceLane::compute, "errors"}].count), kSamples);
  EXPECT_EQ((found[{DeviceLane::compute, "steps"}].count), kIterations);
  const auto& batches = found[{DeviceLane::compute, "mini-batches"}];
  EXPECT_EQ(batches.count, kIterations);
  // Forward and backward: 7 × 7 outputs of 6 channels, of 4 × 3 × 3 inputs each.
  EXPECT_EQ(batches.amount.flops, 2.0 * 2 * kIterations * 6 * 7 * 7 * 36);
  EXPECT_GT((found[{DeviceLane::compute, "AdaRound"}].amount.flops), 0);
  for (const auto& [kind, total] : found) {
    EXPECT_GE(total.seconds, 0) << kind.second;
  }
  EXPECT_EQ(activity.devices().at(0).name, "host");
  EXPECT_GT(activity.devices().at(0).memory_peak, 0U);
  const auto counters = activity.counters();
  EXPECT_GE(counters.bus_bytes, copies.amount.bytes);
  EXPECT_EQ(counters.memory, 0U);  // all was given back
}

TEST(Activity, SpansAreOnTheRunsClockAndInOrder) {
  const Layer layer = make_layer(solve::product(24, 10), {30, 24}, kSamples, 4, 7);
  DeviceActivity activity(DeviceActivity::Clock::now());
  const auto solver = make_solver(on({0, 3}), kernels(), &activity);
  solve_all(*solver, layer, &activity);
  const double end = activity.seconds_at(DeviceActivity::Clock::now());
  std::map<std::string, double> last;
  for (const auto& span : activity.spans()) {
    EXPECT_GE(span.start, 0) << span.name;
    EXPECT_LE(span.start + span.seconds, end + 1e-6) << span.name;
    EXPECT_TRUE(span.name.ends_with(": a layer")) << span.name;
    if (span.lane.ends_with("compute")) {  // one queue: work follows work
      EXPECT_GE(span.start + 1e-6, last[span.lane]) << span.lane << ' ' << span.name;
      last[span.lane] = span.start + span.seconds;
    }
  }
  std::set<std::string> lanes;
  for (const auto& span : activity.spans()) lanes.insert(span.lane);
  for (const char* lane : {"cuda:0 gather", "cuda:0 copy", "cuda:0 compute", "cuda:3 copy", "cuda:3 compute"})
    EXPECT_TRUE(lanes.contains(lane)) << lane;
}

TEST(Activity, TimingChangesNoResult) {
  const Layer layer = make_layer(solve::convolution(4, 6, 2, {3}), {2, 4, 12}, kSamples, 4, 7);
  FinetuneConfig config;
  config.solver = WeightSolver::adaround;
  config.num_iterations = kIterations;
  const auto solved = [&](DeviceActivity* activity) {
    const auto solver = make_solver(on({0}), kernels(), activity);
    InMemory samples(layer);
    return solver->solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config, {}).integers;
  };
  DeviceActivity activity(DeviceActivity::Clock::now());
  EXPECT_EQ(solved(&activity), solved(nullptr));
  EXPECT_FALSE(activity.spans().empty());
}

TEST(Activity, ManyTimesUnderWayAreAllToldOf) {
  DeviceActivity activity(DeviceActivity::Clock::now());
  Device device(0, std::uint64_t{1} << 20, &activity);
  int calls = 0;
  for (int i = 0; i < 1000; ++i)
    device.clock().queued(device.stream(), DeviceLane::compute, "work", {1, 0}, [&] { ++calls; });
  EXPECT_GE(activity.totals().at(0).count, 700U);
  device.clock().report_finished_work();
  EXPECT_EQ(activity.totals().at(0).count, 1000U);
  EXPECT_EQ(calls, 1000);
}

// How peaks are measured, by a clock that the test sets.

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
