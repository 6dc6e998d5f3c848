// The plugin itself on a GPU: skipped where there is none.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "calibration/device_observers.h"
#include "calibration/observers.h"
#include "calibration/statistics_file.h"
#include "shim/cuda_driver.h"
#include "store/device_route.h"
#include "store/support.h"

namespace detent::cuda {
namespace {

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

}  // namespace
}  // namespace detent::cuda
