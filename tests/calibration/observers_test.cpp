#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "calibration/device_support.h"
#include "calibration/observers.h"
#include "calibration/statistics.h"
#include "calibration/statistics_file.h"
#include "detent/error.h"

namespace detent::calibration::test {
namespace {

const std::vector<Observed> kTwo{{"conv_out", "Conv 'c1'"}, {"relu_out", "Relu 'r1'"}};

void serial(std::size_t parts, const std::function<void(std::size_t)>& fn) {
  for (std::size_t p = 0; p < parts; ++p) fn(p);
}

void backwards(std::size_t parts, const std::function<void(std::size_t)>& fn) {
  while (parts-- > 0) fn(parts);
}

void threaded(std::size_t parts, const std::function<void(std::size_t)>& fn) {
  std::vector<std::jthread> threads;
  for (std::size_t p = 0; p < parts; ++p) threads.emplace_back([&fn, p] { fn(p); });
}

void feed(Observers& observers, std::size_t tap, const std::vector<float>& values,
          const data::ParallelFor& parallel = serial) {
  const std::int64_t shape[] = {static_cast<std::int64_t>(values.size())};
  observers.receive(tap, {onnx::DataType::float32, shape, std::as_bytes(std::span<const float>(values))}, parallel);
}

std::vector<float> activation(std::size_t size, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (auto& v : values) v = scale * std::max(normal(random), -0.5F);
  return values;
}

void expect_equal(const Summary& a, const Summary& b) {
  EXPECT_EQ(a.extremes.min, b.extremes.min);
  EXPECT_EQ(a.extremes.max, b.extremes.max);
  EXPECT_EQ(a.count, b.count);
  EXPECT_EQ(a.nan_count, b.nan_count);
  EXPECT_EQ(a.inf_count, b.inf_count);
  const auto bins_a = a.histogram.bins();
  const auto bins_b = b.histogram.bins();
  ASSERT_EQ(bins_a.size(), bins_b.size());
  for (std::size_t i = 0; i < bins_a.size(); ++i) {
    EXPECT_EQ(bins_a[i].low, bins_b[i].low);
    EXPECT_EQ(bins_a[i].high, bins_b[i].high);
    EXPECT_EQ(bins_a[i].count, bins_b[i].count);
  }
}

TEST(Observers, AnySplitAndAnyOrderOfPartsGivesTheSameStatistics) {
  // Sizes around multiples of the smallest part, and one that leaves parts of unequal length.
  const std::vector<std::size_t> sizes{1, 7, 32768, 65535, 65536, 65537, 300001};
  const auto run = [&](std::size_t threads, const data::ParallelFor& parallel, bool reversed) {
    Observers observers(kTwo, {true, false, true, threads});
    auto order = sizes;
    if (reversed) std::reverse(order.begin(), order.end());
    for (const auto size : order) {
      auto values = activation(size, static_cast<unsigned>(size), size > 60000 ? 1e4F : 1.0F);
      values[size / 2] =
          size % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : -std::numeric_limits<float>::infinity();
      feed(observers, 1, values, parallel);
    }
    return observers.statistics();
  };
  const auto expected = run(1, serial, false).tensors.at("relu_out");
  EXPECT_EQ(expected.count, std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
  EXPECT_EQ(expected.nan_count, 2u);
  EXPECT_EQ(expected.inf_count, 5u);
  EXPECT_EQ(expected.histogram.total(), expected.count - 7);
  for (const std::size_t threads : {2UL, 3UL, 8UL, 64UL}) {
    for (const auto& parallel :
         {data::ParallelFor(serial), data::ParallelFor(backwards), data::ParallelFor(threaded)}) {
      for (const bool reversed : {false, true}) {
        SCOPED_TRACE(threads);
        expect_equal(run(threads, parallel, reversed).tensors.at("relu_out"), expected);
      }
    }
  }
}

TEST(Observers, KeepValuesApartAndCountSamples) {
  Observers observers(kTwo, {});
  for (const char* sample : {"a", "b", "c"}) {
    observers.begin_sample(sample);
    feed(observers, 0, {-1.5F, 0.25F});
    feed(observers, 1, {0.0F, 4.0F, 2.0F});
  }
  const auto statistics = observers.statistics();
  EXPECT_EQ(statistics.tensors.at("conv_out").runs, 3u);
  EXPECT_EQ(statistics.tensors.at("conv_out").extremes.lowest(), -1.5F);
  EXPECT_EQ(statistics.tensors.at("conv_out").extremes.highest(), 0.25F);
  EXPECT_EQ(statistics.tensors.at("conv_out").count, 6u);
  EXPECT_EQ(statistics.tensors.at("relu_out").extremes.highest(), 4.0F);
  EXPECT_EQ(statistics.tensors.at("relu_out").histogram.total(), 0u);
}

TEST(Observers, AnErrorNamesTensorNodeAndSample) {
  for (const std::size_t size : {100UL, 100000UL}) {
    Observers observers(kTwo, {false, false, false, 4});
    observers.begin_sample("images/0007.npy");
    auto values = activation(size, 3);
    values[3] = values[size - 1] = std::numeric_limits<float>::quiet_NaN();
    values[size / 2] = std::numeric_limits<float>::infinity();
    try {
      feed(observers, 0, values);
      ADD_FAILURE() << "NaN was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      const std::string text = error.what();
      for (const char* part : {"'conv_out'", "Conv 'c1'", "'images/0007.npy'", "2 NaN", "1 infinite"}) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
      }
    }
  }
}

TEST(Observers, OneBadValueOfEitherKindIsEnough) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Observers observers(kTwo, {});
    feed(observers, 1, {1.0F, 2.0F});
    EXPECT_THROW(feed(observers, 1, {1.0F, bad}), Error) << bad;
  }
}

TEST(Observers, AllowedNonfiniteValuesAreCountedAndLeftOut) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Observers observers(kTwo, {true, false, true, 1});
  observers.begin_sample("s");
  feed(observers, 0, {1.0F, std::numeric_limits<float>::quiet_NaN(), -kInf, -2.0F, kInf});
  feed(observers, 1, {kInf, -std::numeric_limits<float>::quiet_NaN()});
  const auto statistics = observers.statistics();
  const auto& first = statistics.tensors.at("conv_out");
  EXPECT_EQ(first.count, 5u);
  EXPECT_EQ(first.nan_count, 1u);
  EXPECT_EQ(first.inf_count, 2u);
  EXPECT_EQ(first.histogram.total(), 2u);
  EXPECT_EQ(first.extremes.lowest(), -2.0F);
  EXPECT_EQ(first.extremes.highest(), 1.0F);
  EXPECT_FALSE(statistics.tensors.at("relu_out").has_values());
}

TEST(Observers, EmptyTensorsAreNoValues) {
  Observers observers(kTwo, {true, false, false, 4});
  feed(observers, 0, {});
  EXPECT_FALSE(observers.statistics().tensors.at("conv_out").has_values());
}

TEST(Observers, RefuseOtherTypes) {
  Observers observers(kTwo, {});
  EXPECT_THROW(observers.receive(0, {onnx::DataType::int64, {}, {}}, serial), Error);
}

TEST(Statistics, MergeEqualsOneRun) {
  Observers whole(kTwo, {true, false, false, 1}), left(kTwo, {true, false, false, 1}),
      right(kTwo, {true, false, false, 1});
  for (unsigned s = 0; s < 6; ++s) {
    for (Observers* o : {&whole, s % 2 == 0 ? &left : &right}) {
      o->begin_sample(std::to_string(s));
      feed(*o, 0, activation(1000, s, std::pow(10.0F, static_cast<float>(s))));
      feed(*o, 1, activation(10, s + 100));
    }
  }
  const auto expected = whole.statistics();
  auto ab = left.statistics();
  ab.merge(right.statistics());
  auto ba = right.statistics();
  ba.merge(left.statistics());
  for (const auto& merged : {ab, ba}) {
    EXPECT_EQ(merged.tensors.at("conv_out").runs, 6u);
    ASSERT_EQ(merged.tensors.size(), 2u);
    for (const auto& [name, summary] : expected.tensors) expect_equal(merged.tensors.at(name), summary);
  }
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
constexpr float kTiny = std::numeric_limits<float>::min();
constexpr float kMax = std::numeric_limits<float>::max();

std::int32_t key_of(float value) { return order_key(std::bit_cast<std::int32_t>(value)); }

TEST(OrderKey, AscendsOverSpecialValuesAndIsItsOwnInverse) {
  const std::vector<float> ascending{-kNan, -kInf,     -kMax, -1.5F, -1.0F, -kTiny, -kDenormal, -0.0F,
                                     0.0F,  kDenormal, kTiny, 1.0F,  1.5F,  kMax,   kInf,       kNan};
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    const auto bits = std::bit_cast<std::int32_t>(ascending[i]);
    EXPECT_EQ(order_key(order_key(bits)), bits) << i;
    if (i > 0) {
      EXPECT_LT(key_of(ascending[i - 1]), key_of(ascending[i])) << i;
    }
  }
}

TEST(OrderKey, AgreesWithFloatComparisonForAnyBits) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto a = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    const auto b = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(a) || std::isnan(b) || (a == 0 && b == 0)) continue;
    ASSERT_EQ(a < b, key_of(a) < key_of(b)) << a << " " << b;
  }
}

TEST(Scan, OfNothingIsEmptyFiniteAndMergesAway) {
  const KeyRange none = scan({});
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(none.finite());
  const float one = 3.0F;
  KeyRange range = scan({&one, 1});
  range.merge(none);
  EXPECT_EQ(range.lowest(), 3.0F);
  EXPECT_EQ(range.highest(), 3.0F);
}

TEST(Scan, FindsMinAndMaxForEveryLengthAndStart) {
  std::mt19937 random(2);
  std::uniform_int_distribution<int> exponent(-140, 100);
  std::vector<float> storage(96);
  for (std::size_t start = 0; start < 17; ++start) {
    for (std::size_t length = 0; length <= 70; ++length) {
      for (auto& v : storage) {
        v = std::ldexp(static_cast<float>(static_cast<int>(random() % 2001) - 1000), exponent(random));
      }
      const std::span<const float> values(storage.data() + start, length);
      const KeyRange range = scan(values);
      ASSERT_EQ(range.empty(), length == 0);
      if (length == 0) continue;
      float lowest = kInf, highest = -kInf;
      for (const float v : values) {
        if (v < lowest) lowest = v;
        if (v > highest) highest = v;
      }
      ASSERT_EQ(range.lowest(), lowest) << start << " " << length;
      ASSERT_EQ(range.highest(), highest) << start << " " << length;
      ASSERT_TRUE(range.finite());
    }
  }
}

TEST(Scan, TellsTheZerosApart) {
  const std::vector<float> zeros{0.0F, -0.0F, 0.0F};
  EXPECT_TRUE(std::signbit(scan(zeros).lowest()));
  EXPECT_FALSE(std::signbit(scan(zeros).highest()));
}

TEST(Scan, KeepsDenormals) {
  const std::vector<float> values{kDenormal, -kDenormal * 3, 0.0F};
  EXPECT_EQ(scan(values).lowest(), -kDenormal * 3);
  EXPECT_EQ(scan(values).highest(), kDenormal);
}

TEST(Scan, NothingNonfiniteHidesAtAnyPosition) {
  for (const float bad :
       {kNan, -kNan, kInf, -kInf, std::bit_cast<float>(0x7f800001U), std::bit_cast<float>(0xffffffffU)}) {
    for (std::size_t length = 1; length <= 70; ++length) {
      for (std::size_t at = 0; at < length; ++at) {
        std::vector<float> values(length, 1.0F);
        ASSERT_TRUE(scan(values).finite());
        values[at] = bad;
        ASSERT_FALSE(scan(values).finite()) << length << " " << at << " " << std::bit_cast<std::uint32_t>(bad);
      }
    }
  }
  const std::vector<float> largest{kMax, -kMax};
  EXPECT_TRUE(scan(largest).finite());
}

TEST(KeyRange, MergeEqualsScanOfTheWhole) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(1000);
  for (auto& v : values) v = normal(random);
  const KeyRange whole = scan(values);
  for (const std::size_t split : {0UL, 1UL, 333UL, 999UL, 1000UL}) {
    const std::span<const float> all(values);
    KeyRange merged = scan(all.subspan(split));
    merged.merge(scan(all.first(split)));
    EXPECT_EQ(merged.min, whole.min);
    EXPECT_EQ(merged.max, whole.max);
  }
}

// The kernels' source and what the host makes of their counts give the statistics of the CPU's observers, to the bit.

struct Seen {
  std::size_t tap;
  std::vector<float> values;
};

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
