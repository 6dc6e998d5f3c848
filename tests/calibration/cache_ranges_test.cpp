#include "calibration/observers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"

namespace detent::calibration {
namespace {

constexpr std::int64_t kHeads = 2, kChannels = 8;

void serially(std::size_t parts, const std::function<void(std::size_t)>& fn) {
  for (std::size_t p = 0; p < parts; ++p) fn(p);
}

void show(CacheObserver& observer, const std::vector<float>& values, std::int64_t positions) {
  const std::vector<std::int64_t> shape{1, kHeads, positions, kChannels};
  observer.receive(0, {.type = onnx::DataType::float32, .shape = shape, .bytes = std::as_bytes(std::span(values))},
                   serially);
}

std::vector<float> random_values(std::int64_t positions, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(kHeads * positions * kChannels));
  for (auto& value : values) value = normal(random);
  return values;
}

CacheObserver observer_of(std::int64_t rotated, bool neighbours, bool per_channel) {
  return {{{"keys", kHeads, kChannels, rotated, neighbours}}, per_channel};
}

TEST(CacheObserver, FloatsReachTheLargestMagnitudeOfEachChannel) {
  auto observer = observer_of(0, false, true);
  const auto values = random_values(50, 1);
  show(observer, values, 50);
  const auto scales = observer.scales(0, KvCacheType::float8e4m3fn);
  ASSERT_EQ(scales.size(), kHeads * kChannels);
  for (std::size_t channel = 0; channel < scales.size(); ++channel) {
    float largest = 0;
    for (std::size_t at = 0; at < 50; ++at) {
      const std::size_t head = channel / kChannels;
      largest = std::max(largest, std::abs(values[(head * 50 + at) * kChannels + channel % kChannels]));
    }
    EXPECT_FLOAT_EQ(scales[channel], largest / 448);
  }
}

TEST(CacheObserver, ChannelsThatTurnTogetherCountAsLongAsTheirPair) {
  std::vector<float> values(static_cast<std::size_t>(kHeads * kChannels), 0.0F);
  values[0] = 3;  // of the first head
  values[1] = 1;
  values[2] = 4;
  for (const bool neighbours : {false, true}) {
    auto observer = observer_of(4, neighbours, true);
    show(observer, values, 1);
    const auto scales = observer.scales(0, KvCacheType::float8e4m3fn);
    const float first = neighbours ? std::sqrt(10.0F) : 5.0F;
    EXPECT_FLOAT_EQ(scales[0] * 448, first);
    EXPECT_FLOAT_EQ(scales[neighbours ? 1 : 2] * 448, first);
    EXPECT_EQ(scales[4], 1) << "never other than 0";
  }
}

TEST(CacheObserver, IntegersClipWhatIsRareWhereThatIsBetter) {
  std::vector<float> values = random_values(4000, 2);
  values[17] = 40;
  auto observer = observer_of(0, false, false);
  show(observer, values, 4000);
  for (const auto& [type, most] : {std::pair(KvCacheType::int4, 7.0), std::pair(KvCacheType::int8, 127.0)}) {
    const auto error = [&, most = most](double scale) {
      double sum = 0;
      for (const double v : values) sum += std::pow(std::clamp(std::round(v / scale), -most, most) * scale - v, 2);
      return sum;
    };
    double best = std::numeric_limits<double>::infinity();
    for (double limit = 1; limit <= 40; limit *= 1.02) best = std::min(best, error(limit / most));
    const auto scales = observer.scales(0, type);
    ASSERT_EQ(scales.size(), 1U);
    EXPECT_LE(error(scales[0]), 1.05 * best);
    EXPECT_LT(error(scales[0]), error(40 / most));
  }
}

TEST(CacheObserver, OrderAndBatchesChangeNothing) {
  const auto a = random_values(30, 3), b = random_values(30, 4);
  auto one = observer_of(kChannels, false, true), other = observer_of(kChannels, false, true);
  show(one, a, 30);
  show(one, b, 30);
  show(other, b, 30);
  show(other, a, 30);
  EXPECT_EQ(one.scales(0, KvCacheType::int4), other.scales(0, KvCacheType::int4));
}

TEST(CacheObserver, RefusesWhatIsNotFinite) {
  auto values = random_values(3, 5);
  values[7] = std::numeric_limits<float>::quiet_NaN();
  auto observer = observer_of(0, false, false);
  observer.begin_sample("third");
  EXPECT_THROW(show(observer, values, 3), Error);
}

}  // namespace
}  // namespace detent::calibration
