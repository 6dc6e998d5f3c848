#include <gtest/gtest.h>
#include <protozero/pbf_writer.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "calibration/file_support.h"
#include "calibration/observers.h"
#include "calibration/statistics_file.h"

namespace detent::calibration {
namespace {

using namespace test;  // NOLINT

Statistics statistics_of(unsigned seed, std::size_t size = 40) {
  Statistics s;
  auto spoilt = normal(size, seed + 2, 0, 0.001F);
  spoilt[3] = std::numeric_limits<float>::quiet_NaN();
  spoilt[5] = -std::numeric_limits<float>::infinity();
  s.tensors["conv1"] = summary_of_runs({heavy_tailed(size, seed), normal(size, seed + 1, 0, 64)});
  s.tensors["relu"] = summary_of_runs({spoilt}, {true, true, true, 1});
  s.tensors["never"] = Summary();
  s.tensors["empty"] = summary_of_runs({{}, {}});
  s.tensors["only nan"] = summary_of({std::numeric_limits<float>::quiet_NaN()});
  s.tensors["zeros"] = summary_of_runs({{0.0F, -0.0F}, {0.0F}});
  s.tensors["ends"] = summary_of({kLargest, -kDenormal, -0.0F});
  s.samples = 2;
  s.model = {1, 2};
  s.data = {0xfedcba9876543210 + seed, ~std::uint64_t{0} - seed};
  s.model_name = "net.onnx";
  s.has_histograms = s.has_votes = true;
  return s;
}

void expect_equal(const Statistics& a, const Statistics& b) {
  EXPECT_EQ(a.samples, b.samples);
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.data, b.data);
  EXPECT_EQ(a.model_name, b.model_name);
  EXPECT_EQ(a.has_histograms, b.has_histograms);
  EXPECT_EQ(a.has_votes, b.has_votes);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, x] : a.tensors) {
    SCOPED_TRACE(name);
    const Summary& y = b.tensors.at(name);
    EXPECT_EQ(x.extremes.min, y.extremes.min);
    EXPECT_EQ(x.extremes.max, y.extremes.max);
    EXPECT_EQ(x.count, y.count);
    EXPECT_EQ(x.nan_count, y.nan_count);
    EXPECT_EQ(x.inf_count, y.inf_count);
    EXPECT_EQ(x.runs, y.runs);
    EXPECT_EQ(x.sum_of_minima.limbs(), y.sum_of_minima.limbs());
    EXPECT_EQ(x.sum_of_maxima.limbs(), y.sum_of_maxima.limbs());
    EXPECT_EQ(x.votes_8_bit, y.votes_8_bit);
    EXPECT_EQ(x.votes_16_bit, y.votes_16_bit);
    for (const bool negative : {false, true}) EXPECT_EQ(x.histogram.rows(negative), y.histogram.rows(negative));
  }
}

TEST(StatisticsFile, GivesBackWhatWasWritten) {
  Statistics bare;
  bare.tensors["t"] = summary_of_runs({{1.0F, -2.0F}}, ObserverOptions());
  for (const Statistics& s : {statistics_of(1), statistics_of(2, 100000), bare, Statistics()}) {
    const std::string bytes = encode(s);
    const Statistics back = decode(bytes_of(bytes), kWhere);
    expect_equal(back, s);
    EXPECT_EQ(encode(back), bytes);
  }
}

TEST(StatisticsFile, IsTheSameForEveryOrderOfMerging) {
  std::vector<Statistics> parts{statistics_of(1), statistics_of(10), statistics_of(20, 3000), statistics_of(30)};
  std::vector<std::size_t> order{0, 1, 2, 3};
  const auto merged = [&](const std::vector<std::size_t>& which) {
    Statistics all = parts[which.front()];
    for (std::size_t i = 1; i < which.size(); ++i) all.merge(parts[which[i]]);
    return all;
  };
  const std::string expected = encode(merged(order));
  do {
    ASSERT_EQ(encode(merged(order)), expected);
    Statistics pairs = merged({order[0], order[1]});
    pairs.merge(merged({order[2], order[3]}));
    ASSERT_EQ(encode(pairs), expected);
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(decode(bytes_of(expected), kWhere).samples, 8U);
}

TEST(StatisticsFile, EveryChangedByteIsFound) {
  const std::string good = encode(statistics_of(1));
  ASSERT_LT(good.size(), 20000U);
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ change);
      SCOPED_TRACE(at);
      expect_refused(bad);
    }
  }
}

TEST(StatisticsFile, EveryMissingAndAddedByteIsFound) {
  const std::string good = encode(statistics_of(1));
  for (std::size_t size = 0; size < good.size(); ++size) {
    SCOPED_TRACE(size);
    expect_refused(good.substr(0, size), size < kHeader ? "too short" : "is damaged");
  }
  expect_refused(good + '\0', "is damaged");
  expect_refused(good + good, "is damaged");
}

TEST(StatisticsFile, SaysWhatIsWrongWithIt) {
  std::string newer = encode(statistics_of(1));
  newer[8] = 2;
  expect_refused(newer, "has format version 2, this detent reads version 1");
  expect_refused(std::string(100, 'x'), "is not a statistics file");
  expect_refused("\x08\x07\x12\x04 an ONNX model, as it may begin", "is not a statistics file");
}

TEST(StatisticsFile, OnDisk) {
  const TempDir folder;
  const auto path = folder.path() / "a.stats";
  const Statistics s = statistics_of(1);
  write_statistics(s, path);
  expect_equal(read_statistics(path), s);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  for (const auto& bad : {path, folder.path() / "missing.stats", folder.path()}) {
    try {
      read_statistics(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::bad_input);
      EXPECT_NE(std::string(e.what()).find("'" + bad.string() + "'"), std::string::npos) << e.what();
    }
  }
}

TEST(StatisticsFile, ChecksWhatIsMerged) {
  const auto refuse = [](const std::vector<std::string>& says, const std::function<void(Statistics&)>& change) {
    Statistics more = statistics_of(9);
    EXPECT_NO_THROW(check_mergeable(statistics_of(1), more, kWhere));
    change(more);
    try {
      check_mergeable(statistics_of(1), more, kWhere);
      ADD_FAILURE() << says.front();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::bad_input);
      for (const auto& part : says) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refuse({kWhere, "'other.onnx'", "'net.onnx'"}, [](Statistics& s) {
    s.model.high = 9;
    s.model_name = "other.onnx";
  });
  refuse({kWhere, "--no-histogram"}, [](Statistics& s) { s.has_histograms = false; });
  refuse({kWhere, "--set most-common"}, [](Statistics& s) { s.has_votes = false; });
  refuse({kWhere, "other tensors"}, [](Statistics& s) { s.tensors.erase("relu"); });
  refuse({kWhere, "other tensors"}, [](Statistics& s) { s.tensors["more"]; });
}

// Statistics whose envelope is right and whose message is not: refused, or usable without harm.

TEST(Message, RefusesCountsThatContradictEachOther) {
  const auto refuse = [](const char* says, const std::function<void(Summary&)>& change) {
    Statistics s;
    s.has_histograms = s.has_votes = true;
    s.tensors["t"] = summary_of({1.0F, -2.5F, 3.0F});
    EXPECT_NO_THROW(decode(bytes_of(encode(s)), kWhere));
    change(s.tensors["t"]);
    SCOPED_TRACE(says);
    expect_refused(encode(s), says);
  };
  refuse("histogram that does not add up", [](Summary& s) { ++s.count; });
  refuse("histogram that does not add up", [](Summary& s) { ++s.nan_count; });
  refuse("histogram that does not add up", [](Summary& s) { s.histogram = summary_of({1.0F}).histogram; });
  refuse("histogram that is missing", [](Summary& s) { s.histogram = Histogram(); });
  refuse("contradict", [](Summary& s) { s.runs = 0; });
  refuse("contradict", [](Summary& s) { s.runs = 4; });
  refuse("contradict", [](Summary& s) { s.count = 0; });
  refuse("contradict", [](Summary& s) { s.inf_count = 3; });
  refuse("contradict", [](Summary& s) { s.nan_count = ~std::uint64_t{0} - 1; });
  refuse("contradict", [](Summary& s) { s.extremes = KeyRange(); });
  refuse("contradict", [](Summary& s) { std::swap(s.extremes.min, s.extremes.max); });
  refuse("votes that do not add up", [](Summary& s) { s.votes_8_bit[3] += 7; });
  refuse("votes that do not add up", [](Summary& s) { s.votes_16_bit.clear(); });
  refuse("votes that are missing", [](Summary& s) {
    s.votes_8_bit.clear();
    s.votes_16_bit.clear();
  });
  refuse("votes that do not add up", [](Summary& s) {
    s.votes_8_bit[3] += 7;
    s.votes_16_bit[3] += 7;
  });
  refuse("not finite", [](Summary& s) { s.extremes.max = order_key(0x7f800000); });
  refuse("not finite", [](Summary& s) { s.extremes.min = order_key(static_cast<std::int32_t>(0xffc00000U)); });
}

TEST(Message, PassesOverFieldsOfAnotherType) {
  std::string message;
  protozero::pbf_writer file(message);
  file.add_string(4, "flags are numbers");
  file.add_uint64(1, 5);  // a name
  file.add_fixed32(3, 7);
  const Statistics read = decode(bytes_of(wrap(message)), kWhere);
  EXPECT_FALSE(read.has_histograms);
  EXPECT_EQ(read.model_name, "");
  EXPECT_EQ(read.samples, 0U);
}

TEST(Message, RefusesPartsThatItsFlagsDeny) {
  Statistics s;
  s.tensors["t"] = summary_of({1.0F, 2.0F});
  s.has_votes = true;
  expect_refused(encode(s), "histogram");
  s.has_histograms = true;
  s.has_votes = false;
  expect_refused(encode(s), "votes");
}

// A tensor by hand: a minimum, maximum, count and run, and what `more` adds.
std::string tensor_with(const std::function<void(protozero::pbf_writer&)>& more, std::uint64_t count = 1) {
  std::string tensor, message;
  protozero::pbf_writer t(tensor);
  t.add_string(1, "t");
  t.add_float(2, 1.0F);
  t.add_float(3, 1.0F);
  t.add_uint64(4, count);
  t.add_uint64(7, 1);
  more(t);
  protozero::pbf_writer file(message);
  file.add_bool(4, true);
  file.add_message(6, tensor);
  return message;
}
void put_row(protozero::pbf_writer& tensor, std::uint32_t exponent, const std::vector<std::uint64_t>& counts) {
  protozero::pbf_writer row(tensor, 10);
  row.add_uint32(1, exponent);
  row.add_packed_uint64(2, counts.begin(), counts.end());
}
void put_limbs(protozero::pbf_writer& tensor, const std::vector<std::int64_t>& limbs) {
  tensor.add_packed_sint64(8, limbs.begin(), limbs.end());
}

TEST(Message, RefusesRowsAndSumsThatNoneWrites) {
  std::vector<std::uint64_t> counts(256);
  counts[0] = 1;
  EXPECT_NO_THROW(decode(bytes_of(wrap(tensor_with([&](auto& t) { put_row(t, 127, counts); }))), kWhere));
  const auto refuse = [](const char* says, const auto& more, std::uint64_t count = 1) {
    expect_refused(wrap(tensor_with(more, count)), says);
  };
  refuse("an empty row", [](auto& t) { put_row(t, 127, std::vector<std::uint64_t>(256)); });
  refuse("exponent or size", [&](auto& t) { put_row(t, 255, counts); });
  refuse("exponent or size", [&](auto& t) { put_row(t, 0xffffffff, counts); });
  refuse("exponent or size", [](auto& t) { put_row(t, 127, {1, 0, 0, 0}); });
  refuse("exponent or size", [](auto& t) { put_row(t, 127, {}); });
  refuse("too long", [](auto& t) { put_row(t, 127, std::vector<std::uint64_t>(300, 1)); });
  refuse(
      "comes twice",
      [&](auto& t) {
        put_row(t, 127, counts);
        put_row(t, 127, counts);
      },
      2);
  refuse(
      "exponent or size",
      [&](auto& t) {
        put_row(t, 127, counts);
        put_row(t, 120, counts);  // 7 octaves down there are 64
      },
      2);
  const auto with_row = [&](const std::vector<std::int64_t>& limbs) {
    return [=](auto& t) {
      put_row(t, 127, counts);
      put_limbs(t, limbs);
    };
  };
  EXPECT_NO_THROW(decode(bytes_of(wrap(tensor_with(with_row({0, 0, 0, 0, 1 << 21, 0, 0, 0, -1})))), kWhere));
  refuse("wrong length", with_row({1}));
  refuse("wrong length", with_row(std::vector<std::int64_t>(10)));
  refuse("a sum", with_row({std::int64_t{1} << 32, 0, 0, 0, 0, 0, 0, 0, 0}));
  refuse("a sum", with_row({0, 0, 0, -1, 0, 0, 0, 0, 0}));
  std::string message;
  protozero::pbf_writer file(message);
  const std::vector<std::uint64_t> words(5);
  file.add_packed_fixed64(2, words.begin(), words.end());
  expect_refused(wrap(message), "fingerprint");
}

// Nothing but bad_input may come of it. What is accepted must be good for every method and for merging.
bool survives(const std::string& bytes) {
  const auto read = [&] { return decode(bytes_of(bytes), kWhere); };
  try {
    Statistics s = read();
    s.merge(read());
    EXPECT_FALSE(encode(s).empty());
    for (const auto& [name, summary] : s.tensors) {
      if (!summary.has_values()) continue;
      std::vector<Range> ranges{minmax_range(summary, false), most_common_power_of_two_range(summary.votes_8_bit, 8)};
      if (!summary.histogram.empty()) {
        ranges.push_back(percentile_range(summary, 99.9, false));
        ranges.push_back(percentile_range(summary, 99.9, true));
        ranges.push_back(mse_power_of_two_range(summary, int8_power_of_two()));
        ranges.push_back(entropy_range(summary, 64, 8));
      }
      for (const auto& range : ranges) {
        EXPECT_TRUE(std::isfinite(range.min) && std::isfinite(range.max)) << range.min << " to " << range.max;
        EXPECT_LE(range.min, range.max);
      }
    }
    return true;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::bad_input) << e.what();
    return false;
  }
}

class Damage : public ::testing::Test {
 protected:
  Damage() {
    Statistics s;
    s.tensors["a"] = summary_of_runs({heavy_tailed(30, 1), normal(30, 2)});
    s.tensors["b"] = summary_of_runs({rectified(20, 3), Floats(3, 0.0F)});
    s.tensors["c"] = summary_of({kLargest, -kLargest, kDenormal});
    s.tensors["d"] = Summary();
    s.model_name = "m.onnx";
    s.samples = 2;
    s.has_histograms = s.has_votes = true;
    message_ = encode(s).substr(kHeader);
  }

  std::string message_;
};

TEST_F(Damage, NoneIsAccepted) { EXPECT_TRUE(survives(wrap(message_))); }

TEST_F(Damage, OfTensorsThatComeTwice) {
  expect_refused(wrap(message_ + message_), "a tensor that comes twice");
  expect_refused(wrap(message_ + "\x32\x7f"), "is damaged");  // a tensor of 127 bytes that are not there
}

TEST_F(Damage, OfSingleBytes) {
  std::size_t refused = 0;
  for (std::size_t at = 0; at < message_.size(); ++at) {
    for (const int change : {0x01, 0x10, 0x80}) {
      std::string bad = message_;
      bad[at] = static_cast<char>(bad[at] ^ change);
      refused += survives(wrap(bad)) ? 0 : 1;
    }
  }
  EXPECT_GT(refused, message_.size()) << "at least a third is found out by what the message says";
}

TEST_F(Damage, ByCuttingAndRepeating) {
  std::mt19937 random(4);
  for (std::size_t size = 0; size < message_.size(); size += 3) survives(wrap(message_.substr(0, size)));
  for (int round = 0; round < 500; ++round) {
    const std::size_t from = random() % message_.size();
    const std::size_t length = random() % 60;
    std::string bad = message_;
    survives(wrap(bad.insert(random() % bad.size(), message_.substr(from, length))));
    bad = message_;
    survives(wrap(bad.erase(from, length)));
  }
}

TEST_F(Damage, OfManyBytes) {
  std::mt19937 random(5);
  for (int round = 0; round < 1500; ++round) {
    std::string bad = message_;
    for (auto changes = random() % 12 + 1; changes > 0; --changes)
      bad[random() % bad.size()] = static_cast<char>(random() % 4 == 0 ? 0xff : random());
    survives(wrap(bad));
  }
}

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
