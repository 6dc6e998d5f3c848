#include "calibration/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <tuple>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace detent::calibration {
namespace {

using Flat = std::vector<std::tuple<float, float, std::uint64_t>>;

Flat flat(const Histogram& histogram) {
  Flat out;
  for (const auto& b : histogram.bins()) out.emplace_back(b.low, b.high, b.count);
  return out;
}

void count(std::span<const float> values, Histogram& histogram) {
  HistogramScratch scratch;
  scratch.count(values);
  scratch.drain(histogram);
}

Histogram histogram_of(std::span<const float> values) {
  Histogram histogram;
  count(values, histogram);
  return histogram;
}

// As the header states it.
int bins_at(int octaves_below_top) { return octaves_below_top < 6 ? 256 : octaves_below_top < 12 ? 64 : 16; }

// The reference by real arithmetic instead of bits: frexp gives the octave, a floor the place within it.
Flat reference(std::span<const float> values) {
  const auto octave = [](float v) {
    if (std::abs(v) < std::numeric_limits<float>::min()) return -127;
    return std::ilogb(v);
  };
  int top[2]{-1000, -1000};  // of each sign; what rounds to 0 is positive
  for (const float v : values) {
    int& of_sign = top[v <= -0x1p-134F ? 1 : 0];
    of_sign = std::max(of_sign, octave(v));
  }
  std::map<std::pair<float, float>, std::uint64_t> positive, negative;
  for (const float v : values) {
    const int e = octave(v);
    const double base = e == -127 ? 0.0 : std::ldexp(1.0, e);
    const double width = std::ldexp(1.0, std::max(e, -126)) / bins_at(top[v <= -0x1p-134F ? 1 : 0] - e);
    const double low = base + std::floor((std::abs(static_cast<double>(v)) - base) / width) * width;
    // The upper edge of the last bin of all is 2^128, which is infinity as a float.
    // Negative values of the very first bin cannot be told from -0 and count as 0.
    ++(v <= -0x1p-134F ? negative : positive)[{static_cast<float>(low), static_cast<float>(low + width)}];
  }
  Flat out;
  for (auto it = negative.rbegin(); it != negative.rend(); ++it)
    out.emplace_back(-it->first.second, -it->first.first, it->second);
  for (const auto& [edges, n] : positive) out.emplace_back(edges.first, edges.second, n);
  return out;
}

std::vector<float> heavy_tailed(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::student_t_distribution<float> distribution(3.0F);
  std::vector<float> values(size);
  for (auto& v : values) v = distribution(random);
  return values;
}

std::vector<float> any_bits(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values;
  while (values.size() < size) {
    const auto v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(v)) values.push_back(v);
  }
  return values;
}

TEST(Histogram, OfNothing) {
  const Histogram histogram = histogram_of({});
  EXPECT_EQ(histogram.total(), 0u);
  EXPECT_TRUE(histogram.bins().empty());
}

TEST(Histogram, CountsExactly) {
  for (const auto& values :
       {heavy_tailed(20001, 1), any_bits(20000, 2), std::vector<float>{1.0F}, std::vector<float>(9, 0.0F)}) {
    const Histogram histogram = histogram_of(values);
    EXPECT_EQ(histogram.total(), values.size());
    EXPECT_EQ(flat(histogram), reference(values));
  }
}

TEST(Histogram, PutsEdgesIntoTheBinThatStartsThere) {
  // 1 + 1/256 opens the second bin of its octave; the float just below it still belongs to the first.
  const float edge = 1.0F + 1.0F / 256;
  const std::vector<float> values{1.0F, std::nextafter(edge, 0.0F), edge, std::nextafter(2.0F, 0.0F), 2.0F};
  const Flat expected{
      {1.0F, edge, 2}, {edge, 1.0F + 2.0F / 256, 1}, {2.0F - 1.0F / 256, 2.0F, 1}, {2.0F, 2.0F + 2.0F / 256, 1}};
  EXPECT_EQ(flat(histogram_of(values)), expected);
}

TEST(Histogram, CountsMinusZeroAsZero) {
  const std::vector<float> values{-0.0F, 0.0F, -0.0F};
  const auto bins = histogram_of(values).bins();
  ASSERT_EQ(bins.size(), 1u);
  EXPECT_EQ(bins[0].low, 0.0F);
  EXPECT_EQ(bins[0].count, 3u);
}

TEST(Histogram, KeepsTheSignOfDenormalsButForTheSmallest) {
  const std::vector<float> values{-0x1p-134F, -std::numeric_limits<float>::denorm_min()};
  const auto bins = histogram_of(values).bins();
  ASSERT_EQ(bins.size(), 2u);
  EXPECT_EQ(bins[0].high, -0x1p-134F);
  EXPECT_EQ(bins[1].low, 0.0F);
}

TEST(Histogram, TheOrderOfValuesDoesNotMatter) {
  auto values = any_bits(3000, 4);
  const auto more = heavy_tailed(3000, 5);
  values.insert(values.end(), more.begin(), more.end());
  const Flat expected = flat(histogram_of(values));
  std::mt19937 random(6);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    Histogram pieces;
    HistogramScratch scratch;
    for (std::size_t at = 0; at < values.size();) {
      const std::size_t length = std::min<std::size_t>(random() % 900, values.size() - at);
      scratch.count(std::span<const float>(values).subspan(at, length));
      if (random() % 2 == 0) scratch.drain(pieces);
      at += length;
    }
    scratch.drain(pieces);
    ASSERT_EQ(flat(pieces), expected) << round;
  }
}

TEST(Histogram, ScratchLeavesNothingBehind) {
  HistogramScratch scratch;
  Histogram first, second;
  const auto values = heavy_tailed(5000, 7);
  scratch.count(any_bits(5000, 8));
  scratch.drain(first);
  scratch.count(values);
  scratch.drain(second);
  scratch.drain(second);
  EXPECT_EQ(flat(second), reference(values));
}

TEST(Histogram, MergeCommutesAndAssociates) {
  // Scales far apart, so that every merge moves the border between fine and coarse.
  const std::vector<std::vector<float>> parts{
      heavy_tailed(500, 9), {1e-5F, -3e-6F, 2.5e-5F}, {4e9F, 1.0F}, any_bits(200, 10), {}};
  std::vector<std::size_t> order{0, 1, 2, 3, 4};
  std::vector<float> all;
  for (const auto& p : parts) all.insert(all.end(), p.begin(), p.end());
  const Flat expected = reference(all);
  do {
    Histogram left;
    for (const auto i : order) left.merge(histogram_of(parts[i]));
    ASSERT_EQ(flat(left), expected);
    Histogram right;
    for (const auto i : order) {
      Histogram next = histogram_of(parts[i]);
      next.merge(right);
      right = next;
    }
    ASSERT_EQ(flat(right), expected);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Histogram, ALateLargeValueCoarsensWhatWasFineBefore) {
  auto small = heavy_tailed(4000, 11);
  for (auto& v : small) v *= 1e-5F;
  const auto large = heavy_tailed(4000, 12);
  std::vector<float> all(small);
  all.insert(all.end(), large.begin(), large.end());
  const Flat expected = reference(all);

  Histogram ascending;
  count(small, ascending);
  EXPECT_EQ(flat(ascending), reference(small));
  count(large, ascending);
  EXPECT_EQ(flat(ascending), expected);
  Histogram descending;
  count(large, descending);
  count(small, descending);
  EXPECT_EQ(flat(descending), expected);
  Histogram merged = histogram_of(large);
  merged.merge(histogram_of(small));
  EXPECT_EQ(flat(merged), expected);
}

TEST(Histogram, BinsAscendAndDoNotOverlap) {
  for (const auto& values : {heavy_tailed(50000, 13), any_bits(50000, 14)}) {
    double end = -std::numeric_limits<double>::infinity();
    for (const auto& b : histogram_of(values).bins()) {
      ASSERT_LT(b.low, b.high);
      ASSERT_GT(b.count, 0u);
      ASSERT_GE(b.low, end);
      end = b.high;
    }
  }
}

// Middle of the bin that holds the value of a rank.
double order_statistic(const std::vector<Bin>& bins, std::uint64_t rank) {
  for (const auto& b : bins) {
    if (rank < b.count) return 0.5 * (static_cast<double>(b.low) + b.high);
    rank -= b.count;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

TEST(Histogram, GivesPercentilesOfHeavyTailsWithinTwoThousandths) {
  for (const unsigned seed : {21U, 22U, 23U}) {
    auto values = heavy_tailed(200000, seed);
    const auto bins = histogram_of(values).bins();
    std::sort(values.begin(), values.end());
    for (const double percent : {0.001, 0.01, 0.1, 1.0, 99.0, 99.9, 99.99, 99.999}) {
      const double at = percent / 100 * static_cast<double>(values.size() - 1);
      const auto rank = static_cast<std::uint64_t>(at);
      const double part = at - std::floor(at);
      const double exact = values[rank] * (1 - part) + values[rank + 1] * part;
      const double estimate = order_statistic(bins, rank) * (1 - part) + order_statistic(bins, rank + 1) * part;
      EXPECT_NEAR(estimate, exact, 2e-3 * std::abs(exact)) << percent << "% seed " << seed;
    }
  }
}

TEST(Histogram, FarBelowTheTopTheErrorIsSmallAgainstTheTop) {
  auto values = any_bits(20000, 24);
  const auto bins = histogram_of(values).bins();
  std::sort(values.begin(), values.end());
  const double top = std::max(std::abs(values.front()), std::abs(values.back()));
  for (std::uint64_t rank = 0; rank < values.size(); rank += 7) {
    const double exact = values[rank];
    ASSERT_NEAR(order_statistic(bins, rank), exact, std::max(std::abs(exact) / 512, top / 2048)) << rank;
  }
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Histogram, MemoryStaysWithinTheStatedBound) {
  std::vector<float> values;
  for (std::uint32_t key = 0; key < 0x10000U; ++key) {  // one value for each fine bin of every finite exponent
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      const auto v = std::bit_cast<float>(sign | (key << 15) | 1U);
      if (std::isfinite(v)) values.push_back(v);
    }
  }
  HistogramScratch scratch;
  Histogram warm;
  scratch.count(values);
  scratch.drain(warm);
  const std::size_t before = mallinfo2().uordblks;
  Histogram full;
  scratch.count(values);
  scratch.drain(full);
  const std::size_t used = mallinfo2().uordblks - before;
  EXPECT_LE(used, 140u << 10);
  EXPECT_GE(used, 90u << 10);
  EXPECT_NEAR(static_cast<double>(full.memory_bytes()), static_cast<double>(used), 0.15 * static_cast<double>(used));

  std::mt19937 random(25);
  std::normal_distribution<float> normal;
  std::vector<float> typical(500000);
  for (auto& v : typical) v = normal(random);
  EXPECT_LE(histogram_of(typical).memory_bytes(), 36u << 10);
}
#endif

}  // namespace
}  // namespace detent::calibration
