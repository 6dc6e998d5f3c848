#include "calibration/statistics_file.h"

#include <filesystem>

#include "base/file.h"
#include "calibration/file_support.h"

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

}  // namespace
}  // namespace detent::calibration
