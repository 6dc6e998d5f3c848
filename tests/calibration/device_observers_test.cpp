// The kernels' source and what the host makes of their counts give the statistics of the CPU's observers, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "calibration/device_support.h"
#include "calibration/observers.h"
#include "calibration/statistics_file.h"
#include "detent/error.h"

namespace detent::calibration::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::vector<Observed> kTwo{{"conv_out", "Conv 'c1'"}, {"relu_out", "Relu 'r1'"}};

struct Seen {
  std::size_t tap;
  std::vector<float> values;
};

void serial(std::size_t parts, const std::function<void(std::size_t)>& fn) {
  for (std::size_t p = 0; p < parts; ++p) fn(p);
}

/// All that can be told of statistics, as it stands in a file.
std::string text_of(Observation& observers) {
  auto statistics = observers.statistics();
  statistics.has_histograms = statistics.has_votes = true;
  return encode(statistics);
}

std::string on_host(const std::vector<Seen>& runs, const ObserverOptions& options) {
  Observers observers(kTwo, options);
  for (const auto& [tap, values] : runs) {
    const std::int64_t shape[] = {static_cast<std::int64_t>(values.size())};
    observers.begin_sample("s");
    observers.receive(tap, {onnx::DataType::float32, shape, std::as_bytes(std::span(values))}, serial);
    observers.end_sample();
  }
  return text_of(observers);
}

void feed(DeviceObservers& observers, std::size_t tap, std::span<const float> values) {
  const std::int64_t shape[] = {static_cast<std::int64_t>(values.size())};
  observers.receive_on_device(tap, {onnx::DataType::float32, shape, values.data(), values.size_bytes()});
}

std::string on_device(const std::vector<Seen>& runs, const ObserverOptions& options, const Grid& grid) {
  HostDevice device(grid);
  DeviceObservers observers(kTwo, options, device);
  for (const auto& [tap, values] : runs) {
    observers.begin_sample("s");
    feed(observers, tap, values);
    observers.end_sample();
  }
  return text_of(observers);
}

std::vector<float> activation(std::size_t size, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (auto& v : values) v = scale * std::max(normal(random), -0.5F);
  return values;
}

/// Of every exponent and sign: rows then meet in slots.
std::vector<float> all_floats(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(size);
  for (auto& v : values) v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  return values;
}

std::vector<float> special() {
  const float tiny = std::numeric_limits<float>::denorm_min(), largest = std::numeric_limits<float>::max();
  return {0.0F, -0.0F, tiny, -tiny, largest, -largest, kInf, -kInf, kNan, -kNan, 1.0F, -1.0F, 1e-38F, -1e-38F};
}

std::vector<Seen> mixed_runs() {
  std::vector<Seen> runs;
  unsigned seed = 0;
  for (const std::size_t size : {1U, 3U, 4U, 5U, 63U, 64U, 1000U, 4099U, 20011U}) {
    runs.push_back({0, activation(size, ++seed, 100)});
    runs.push_back({1, all_floats(size, ++seed)});
  }
  runs.push_back({0, {}});
  runs.push_back({1, special()});
  runs.push_back({0, std::vector<float>(777, 0.0F)});
  runs.push_back({0, std::vector<float>(777, kNan)});
  runs.push_back({1, std::vector<float>(777, -3.5F)});
  return runs;
}

TEST(DeviceObservers, GiveTheSameStatisticsAsTheHosts) {
  const auto runs = mixed_runs();
  for (const bool histogram : {true, false}) {
    const ObserverOptions options{histogram, histogram, true, 1};
    const std::string expected = on_host(runs, options);
    for (const Grid& grid : {Grid{1, 4, false}, Grid{1, 512, false}, Grid{3, 64, false}, Grid{3, 64, true},
                             Grid{7, 33, true}, Grid{40, 512, false}}) {
      EXPECT_EQ(on_device(runs, options, grid), expected) << grid.blocks << " x " << grid.threads;
    }
  }
}

TEST(DeviceObservers, TakeTensorsThatBeginAnywhere) {
  const auto values = activation(1003, 5);
  for (std::size_t begin = 0; begin < 5; ++begin) {
    for (std::size_t end = values.size() - 5; end < values.size(); ++end) {
      const std::vector<float> part(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                    values.begin() + static_cast<std::ptrdiff_t>(end));
      HostDevice device;
      DeviceObservers observers(kTwo, {true, false, false, 1}, device);
      feed(observers, 0, std::span(values).subspan(begin, end - begin));
      EXPECT_EQ(text_of(observers), on_host({{0, part}}, {true, false, false, 1})) << begin << " to " << end;
    }
  }
}

TEST(DeviceObservers, NameTheFirstTensorThatIsNotFinite) {
  HostDevice device;
  DeviceObservers observers(kTwo, {true, false, false, 1}, device);
  observers.begin_sample("one.npy");
  feed(observers, 0, std::vector<float>{1, 2});
  observers.end_sample();
  observers.begin_sample("two.npy");
  feed(observers, 1, std::vector<float>{1, kNan, kInf, kNan});
  feed(observers, 0, std::vector<float>{kInf});
  try {
    observers.end_sample();
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::bad_input);
    EXPECT_STREQ(e.what(), "tensor 'relu_out' (Relu 'r1') holds 2 NaN and 1 infinite values for sample 'two.npy'");
  }
}

TEST(DeviceObservers, ReadCellsOnceASampleAndTablesAtTheEnd) {
  HostDevice device;
  DeviceObservers observers(kTwo, {true, false, false, 1}, device);
  for (int sample = 0; sample < 10; ++sample) {
    observers.begin_sample("s");
    feed(observers, 0, activation(100, 1));
    feed(observers, 1, activation(100, 2));
    observers.end_sample();
  }
  EXPECT_EQ(device.last->cell_reads, 10);
  EXPECT_EQ(device.last->table_reads, 0);
  observers.statistics();
  EXPECT_EQ(device.last->table_reads, 2);
  observers.statistics();  // nothing came since
  EXPECT_EQ(device.last->table_reads, 2);
}

TEST(DeviceObservers, TakeAnyNumberOfTensorsInARun) {
  std::vector<Seen> runs;
  for (unsigned i = 0; i < 1000; ++i) runs.push_back({i % 2, activation(5, i)});
  HostDevice device;
  DeviceObservers observers(kTwo, {true, false, false, 1}, device);
  observers.begin_sample("a loop");
  for (const auto& [tap, values] : runs) feed(observers, tap, values);
  observers.end_sample();
  EXPECT_EQ(text_of(observers), on_host(runs, {true, false, false, 1}));
}

/// Counters without memory: one value as often as wanted.
class ManyTables : public DeviceTables {
 public:
  void reduce(const float*, std::size_t count, std::size_t, std::size_t) override {
    counted_ += count;
    largest = std::max(largest, counted_);
  }
  void take_cells(std::span<RunCell> cells) override {
    std::fill(cells.begin(), cells.end(), RunCell{~0xbf800000U, 0xbf800000U, 0, 0});
  }
  void take_table(std::size_t, std::span<std::uint32_t, Histogram::kTable> counts) override {
    std::fill(counts.begin(), counts.end(), 0U);
    counts[0x3f800000U >> cuda::kBitsBelowBin] = static_cast<std::uint32_t>(counted_);
    counted_ = 0;
  }
  inline static std::uint64_t largest = 0;

 private:
  std::uint64_t counted_ = 0;
};
class ManyDevice : public CalibrationDevice {
 public:
  std::string name() const override { return "many"; }
  const shim::Device& place() const override { return place_; }
  std::unique_ptr<DeviceTables> tables(std::size_t, std::size_t, bool) override {
    return std::make_unique<ManyTables>();
  }

 private:
  shim::Device place_;
};

TEST(DeviceObservers, ReadTablesBeforeTheirCountersRunOver) {
  ManyDevice device;
  DeviceObservers observers({{"x", "graph input"}}, {true, false, false, 1}, device);
  const std::uint64_t three_billion = 3'000'000'000;
  for (int i = 0; i < 3; ++i) observers.receive_on_device(0, {onnx::DataType::float32, {}, nullptr, 4 * three_billion});
  const auto summary = observers.statistics().tensors.at("x");
  EXPECT_EQ(summary.count, 3 * three_billion);
  EXPECT_EQ(summary.histogram.total(), 3 * three_billion);
  EXPECT_EQ(summary.extremes.lowest(), 1.0F);
  EXPECT_EQ(summary.extremes.highest(), 1.0F);
  EXPECT_LE(ManyTables::largest, 0xffffffffU);
}

TEST(DeviceObservers, RefuseTensorsOfTheHost) {
  HostDevice device;
  DeviceObservers observers(kTwo, {false, false, false, 1}, device);
  EXPECT_THROW(observers.receive(0, {}, serial), Error);
  Observers hosts(kTwo, {});
  EXPECT_THROW(hosts.receive_on_device(0, {}), Error);
}

TEST(ObserveKernel, TakesAsManyBlocksAsThereIsWorkFor) {
  EXPECT_EQ(cuda::observe_blocks(1, 132), 1U);
  EXPECT_EQ(cuda::observe_blocks(32 * cuda::kThreads, 132), 1U);
  EXPECT_EQ(cuda::observe_blocks(32 * cuda::kThreads + 1, 132), 2U);
  EXPECT_EQ(cuda::observe_blocks(std::size_t{1} << 30, 132), 3 * 132U);
}

}  // namespace
}  // namespace detent::calibration::test
