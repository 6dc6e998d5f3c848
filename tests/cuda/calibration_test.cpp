// The plugin's counters of calibration, on a device that is the host.
#include "cuda/plugin_calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "calibration/observers.h"
#include "calibration/statistics_file.h"
#include "detent/error.h"

namespace detent::cuda {
namespace {

using namespace calibration;

const std::vector<Observed> kThree{{"a", "Conv 'a'"}, {"b", "Relu 'b'"}, {"c", "Add 'c'"}};

std::vector<float> activation(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (auto& v : values) v = std::max(100 * normal(random), -0.0F);
  return values;
}

std::unique_ptr<CalibrationDevice> open(const DeviceRequest& request) { return calibration_calls().open(request); }

std::string on_device(CalibrationDevice& device, const ObserverOptions& options) {
  DeviceObservers observers(kThree, options, device);
  for (unsigned sample = 0; sample < 5; ++sample) {
    observers.begin_sample("s");
    for (unsigned tap = 0; tap < 3; ++tap) {
      const auto values = activation(20'000 * tap + 17, 10 * sample + tap);
      observers.receive_on_device(tap, {onnx::DataType::float32, {}, values.data(), values.size() * sizeof(float)});
    }
    observers.end_sample();
  }
  return encode(observers.statistics());
}

std::string on_host(const ObserverOptions& options) {
  const auto serial = [](std::size_t parts, const std::function<void(std::size_t)>& fn) {
    for (std::size_t p = 0; p < parts; ++p) fn(p);
  };
  Observers observers(kThree, options);
  for (unsigned sample = 0; sample < 5; ++sample) {
    for (unsigned tap = 0; tap < 3; ++tap) {
      const auto values = activation(20'000 * tap + 17, 10 * sample + tap);
      observers.receive(tap, {onnx::DataType::float32, {}, std::as_bytes(std::span(values))}, serial);
    }
  }
  return encode(observers.statistics());
}

TEST(CalibrationOnADevice, CountsAsTheHostDoes) {
  const auto device = open({.number = 2, .memory_budget = {}});
  EXPECT_EQ(device->name(), "cuda:2 (host)");
  EXPECT_EQ(device->place().ordinal, 2);
  for (const bool histogram : {true, false}) {
    const ObserverOptions options{histogram, false, false, 1};
    EXPECT_EQ(on_device(*device, options), on_host(options));
  }
  const ObserverOptions votes{true, true, false, 1};
  EXPECT_EQ(on_device(*device, votes), on_host(votes));
  EXPECT_EQ(on_device(*open({.number = 0, .memory_budget = {}, .pins = false}), votes), on_host(votes));
}

TEST(CalibrationOnADevice, LeavesTheRestOfTheBudgetToTheRuntime) {
  const std::uint64_t budget = std::uint64_t{100} << 20;
  EXPECT_EQ(open({.number = 0, .memory_budget = {}, .taps = 3, .tables = true})->place().memory_limit, 0U)
      << "no limit";
  const auto device = open({.number = 0, .memory_budget = budget, .taps = 3, .tables = true});
  const std::uint64_t tables = 3 * Histogram::kTable * sizeof(std::uint32_t);
  EXPECT_LT(device->place().memory_limit, budget - tables);
  EXPECT_GT(device->place().memory_limit, budget - tables - (std::uint64_t{1} << 20));
  EXPECT_EQ(on_device(*device, {true, false, false, 1}), on_host({true, false, false, 1}));
  try {
    open({.number = 0, .memory_budget = budget, .taps = 300, .tables = true});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::resource);
    EXPECT_NE(e.hint().find("--set device-memory-budget"), std::string::npos);
  }
  EXPECT_NO_THROW(open({.number = 0, .memory_budget = budget, .taps = 300, .tables = false}));
}

}  // namespace
}  // namespace detent::cuda
