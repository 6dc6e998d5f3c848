#include "calibration/observers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "detent/error.h"

namespace detent::calibration {
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

}  // namespace
}  // namespace detent::calibration
