#include "remedies/equalization.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace detent::remedies {
namespace {

ChannelExtremes extremes_of(const std::vector<std::vector<float>>& samples) {
  ChannelExtremes extremes;
  for (const auto& sample : samples) {
    extremes.add(sample, std::vector<std::int64_t>{1, static_cast<std::int64_t>(sample.size()), 1}, false);
  }
  return extremes;
}

TEST(ChannelExtremes, HoldAllSamplesAndZero) {
  const auto extremes = extremes_of({{1, -2, 3}, {-4, -1, 5}});
  ASSERT_EQ(extremes.channels(), 3U);
  EXPECT_EQ(extremes.low(0), -4);
  EXPECT_EQ(extremes.high(0), 1);
  EXPECT_EQ(extremes.high(1), 0);
  EXPECT_EQ(extremes.magnitude(2), 5);
  EXPECT_DOUBLE_EQ(extremes.unevenness(), 5 * 3 / 11.0);
}

TEST(ChannelExtremes, AreOfEachChannelHoweverLongItsRows) {
  for (const std::int64_t run : {1, 3, 16, 37}) {
    std::vector<float> values(static_cast<std::size_t>(2 * 3 * run));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3;
    const auto channel = [&](std::size_t i) { return i / static_cast<std::size_t>(run) % 3; };
    ChannelExtremes extremes;
    extremes.add(values, std::vector<std::int64_t>{2, 3, run}, false);
    for (std::size_t c = 0; c < 3; ++c) {
      float low = 0, high = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (channel(i) != c) continue;
        low = std::min(low, values[i]);
        high = std::max(high, values[i]);
      }
      EXPECT_EQ(extremes.low(c), low) << run;
      EXPECT_EQ(extremes.high(c), high) << run;
    }
  }
}

TEST(ChannelExtremes, HeadroomIsWhatFourTimesAsManyBring) {
  EXPECT_EQ(extremes_of({{2, 8}, {2, 8}, {2, 8}, {2, 8}}).headroom(), 1) << "no more is to come";
  // One half of the samples reaches half as far in each channel: on average √2 from half to all, 2 to four times all.
  EXPECT_NEAR(extremes_of({{2, 4}, {1, 8}}).headroom(), 2 / 1.3, 1e-5);
  EXPECT_EQ(extremes_of({{1, 1}}).headroom(), 4) << "one sample says nothing of others";
  EXPECT_EQ(extremes_of({{0, 0}, {0, 0}}).headroom(), 1);
}

TEST(EqualizingFactors, AreSharesOfTheRangeWhereNoProductReads) {
  graph::ChannelScaling scaling;
  scaling.maker.emplace();
  const onnx::Model model;
  const graph::Index index(model);
  const auto extremes = extremes_of({{4, -1, 0.01F, 20}, {4, -1, 0.01F, 20}});
  const calibration::Range range{-2, 8};
  const auto factors = equalizing_factors(model, index, scaling, extremes, range);
  EXPECT_EQ(factors, (std::vector<float>{0.5F, 0.5F, 1.0F / 16, 1})) << "no less than a sixteenth, no more than all";
  const auto scaled = scaled_range(scaling, extremes, range);
  EXPECT_EQ(scaled.min, -2);
  EXPECT_EQ(scaled.max, 8);
}

}  // namespace
}  // namespace detent::remedies
