#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "calibration/methods.h"
#include "calibration/statistics.h"
#include "calibration/support.h"

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

using namespace test;  // NOLINT

// Many points spread evenly over each interval, each rounded and clipped by itself.
double brute_force(const Density& density, const Grid& grid, Power power, int points = 20000) {
  double sum = 0;
  for (const auto& i : density.intervals) {
    double inside = 0;
    for (int p = 0; p < points; ++p) {
      const double x = i.low + (i.high - i.low) * (p + 0.5) / points;
      const double q = std::nearbyint(std::clamp(x, grid.low, grid.high) / grid.step) * grid.step;
      inside += power == Power::one ? std::abs(x - q) : (x - q) * (x - q);
    }
    sum += i.count * inside / points;
  }
  return sum / density.total;
}

Density of(std::vector<Interval> intervals) {
  Density density;
  density.intervals = std::move(intervals);
  for (const auto& i : density.intervals) density.total += i.count;
  density.min = density.intervals.front().low;
  density.max = density.intervals.back().high;
  return density;
}

Grid grid_of(double step, int zero_point, int lowest, int highest) {
  return {step, step * (lowest - zero_point), step * (highest - zero_point)};
}

void expect_close(const Density& density, const Grid& grid, double relative = 1e-6) {
  for (const Power power : {Power::one, Power::two}) {
    const double expected = brute_force(density, grid, power);
    EXPECT_NEAR(mean_error(density, grid, power), expected, relative * expected)
        << (power == Power::one ? "mean " : "squared ") << "step " << grid.step << " from " << grid.low << " to "
        << grid.high;
  }
}

const std::vector<Grid> kGrids{grid_of(0.01, 0, -128, 127),     grid_of(0.02, 77, 0, 255),
                               grid_of(1.0 / 128, 128, 0, 255), grid_of(0.5, 0, -128, 127),
                               grid_of(0.037, 255, 0, 255),     grid_of(0.037, 0, 0, 255)};

TEST(MeanError, OfOneIntervalAsOfManyPoints) {
  // Within a cell, over one edge, over several cells, over an end of the grid, far outside, over all of it.
  const std::vector<Interval> intervals{{0.101, 0.1049, 1},  {0.1, 0.11, 3},      {-0.317, 0.293, 2}, {1.2, 1.3, 1},
                                        {-1.301, -1.272, 5}, {7.5, 8.25, 1},      {-64.5, -60, 1},    {-3, 11, 2},
                                        {-100, 200, 7},      {1.2749, 1.2751, 1}, {0, 1e-30, 4},      {5.0999, 5.1, 1}};
  for (const auto& interval : intervals) {
    SCOPED_TRACE(interval.low);
    for (const Grid& grid : kGrids) expect_close(of({interval}), grid, 1e-4);
  }
}

TEST(MeanError, OfAHistogramAsOfManyPoints) {
  for (const auto& kind : {normal(3000, 1), heavy_tailed(3000, 2), rectified(3000, 3), Floats{0.3F, 0.31F, 5, -2}}) {
    const Density density = density_of(summary_of(kind));
    for (const Grid& grid : kGrids) {
      for (const Power power : {Power::one, Power::two}) {
        const double expected = brute_force(density, grid, power, 200);
        EXPECT_NEAR(mean_error(density, grid, power), expected, 1e-3 * expected);
      }
    }
  }
}

TEST(MeanError, With16Bits) {
  const Density density = of({{-2.0001, -1.9, 3}, {-0.5, 0.25, 4}, {0.25, 0.2503, 1}, {1.5, 3, 2}});
  expect_close(density, grid_of(2.0 / 32768, 0, -32768, 32767), 1e-4);
  expect_close(density, grid_of(4.0 / 65535, 32000, 0, 65535), 1e-4);
}

TEST(MeanError, OfPointsIsTheirOwn) {
  const Grid grid = grid_of(0.25, 0, -8, 7);
  const auto expect = [&](double x, double error) {
    const Density density = of({{x, x, 3}});
    EXPECT_DOUBLE_EQ(mean_error(density, grid, Power::one), error) << x;
    EXPECT_DOUBLE_EQ(mean_error(density, grid, Power::two), error * error) << x;
  };
  expect(0, 0);
  expect(0.5, 0);
  expect(0.375, 0.125);
  expect(-0.1, 0.1);
  expect(1.75, 0);
  expect(1.875, 0.125);
  expect(9, 7.25);
  expect(-2, 0);
  expect(-5.5, 3.5);
}

TEST(MeanError, NarrowIntervalsGoOverIntoPoints) {
  // The narrowest that are integrated and the widest that are not agree with the point between them.
  const Grid grid = grid_of(0.25, 0, -128, 127);
  for (const double x : {0.3, 7.11, -30.03, 33.3, -40.0}) {
    for (const Power power : {Power::one, Power::two}) {
      const double point = mean_error(of({{x, x, 1}}), grid, power);
      for (const double width : {1e-12, 0.9e-7, 1.1e-7, 1e-6})
        EXPECT_NEAR(mean_error(of({{x, x + width * grid.step, 1}}), grid, power), point, 1e-4 * point)
            << x << " " << width;
    }
  }
}

TEST(MeanError, DoesNotChangeWhenAnIntervalIsCut) {
  const Grid grid = grid_of(0.02, 77, 0, 255);
  std::mt19937 random(4);
  std::uniform_real_distribution<double> place(-3, 6);
  for (int round = 0; round < 500; ++round) {
    const double a = place(random), b = place(random);
    const Interval whole{std::min(a, b), std::max(a, b), 6};
    const double mid = whole.low + (whole.high - whole.low) / 3;
    for (const Power power : {Power::one, Power::two}) {
      const double expected = mean_error(of({whole}), grid, power);
      EXPECT_NEAR(mean_error(of({{whole.low, mid, 2}, {mid, whole.high, 4}}), grid, power), expected,
                  1e-9 * expected + 1e-15);
    }
  }
}

TEST(MeanError, StaysFiniteAtTheEndsOfFloat) {
  for (const auto& values : {Floats{kLargest, -kLargest, 1}, Floats{kDenormal, -kDenormal}, Floats{-kLargest}}) {
    const Density density = density_of(summary_of(values));
    for (const double step : {1.0, 0x1p-126, 0x1p121}) {
      for (const Power power : {Power::one, Power::two}) {
        const double error = mean_error(density, grid_of(step, 0, -128, 127), power);
        EXPECT_TRUE(std::isfinite(error) && error >= 0) << error;
      }
    }
  }
}

TEST(Density, EndsAtTheExtremesAndKeepsAllCounts) {
  for (const auto& [name, values] : all_kinds()) {
    SCOPED_TRACE(name);
    const Density density = density_of(summary_of(values));
    const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
    EXPECT_EQ(density.min, static_cast<double>(*lowest));
    EXPECT_EQ(density.max, static_cast<double>(*highest));
    EXPECT_EQ(density.total, static_cast<double>(values.size()));
    double count = 0;
    double end = density.min;
    for (const auto& i : density.intervals) {
      EXPECT_LE(end, i.low);
      EXPECT_LE(i.low, i.high);
      end = i.high;
      count += i.count;
    }
    EXPECT_LE(end, density.max);
    EXPECT_EQ(count, density.total);
  }
}

TEST(Density, OfNothingIsEmpty) {
  EXPECT_TRUE(density_of(Summary()).intervals.empty());
  EXPECT_EQ(mean_error(density_of(Summary()), {1, -128, 127}, Power::two), 0);
  EXPECT_TRUE(density_of(summary_of_runs({{1.0F, 2.0F}}, ObserverOptions())).intervals.empty())
      << "no histogram was taken";
}

using Floats = std::vector<float>;

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
constexpr std::int64_t kWord = std::int64_t{1} << 32;
__extension__ using Wide = __int128;

ExactSum sum_of(const Floats& values) {
  ExactSum sum;
  for (const float v : values) sum.add(v);
  return sum;
}

Floats any_finite(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Floats values;
  while (values.size() < size) {
    const auto v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(v)) values.push_back(v);
  }
  return values;
}

void expect_canonical(const ExactSum::Limbs& limbs) {
  for (std::size_t i = 0; i + 1 < limbs.size(); ++i) {
    EXPECT_GE(limbs[i], 0) << i;
    EXPECT_LT(limbs[i], kWord) << i;
  }
}

TEST(ExactSum, OfNothingIsZero) {
  EXPECT_EQ(ExactSum().value(), 0);
  EXPECT_EQ(ExactSum().limbs(), ExactSum::Limbs{});
  EXPECT_EQ(sum_of({0.0F, -0.0F}).limbs(), ExactSum::Limbs{});
}

TEST(ExactSum, LimbsWeighAsStated) {
  EXPECT_EQ(sum_of({kDenormal}).limbs(), (ExactSum::Limbs{1}));
  EXPECT_EQ(sum_of({std::numeric_limits<float>::min()}).limbs(), (ExactSum::Limbs{1 << 23}));
  EXPECT_EQ(sum_of({1.0F}).limbs(), (ExactSum::Limbs{0, 0, 0, 0, 1 << 21}));  // 149 = 4 * 32 + 21
  EXPECT_EQ(sum_of({-1.0F}).limbs(),
            (ExactSum::Limbs{0, 0, 0, 0, kWord - (1 << 21), kWord - 1, kWord - 1, kWord - 1, -1}));
  // (2^24 - 1) * 2^104 = (2^24 - 1) * 2^29 in limb 7
  EXPECT_EQ(sum_of({kLargest}).limbs(), (ExactSum::Limbs{0, 0, 0, 0, 0, 0, 0, 0xe0000000, 0x1fffff}));
}

TEST(ExactSum, EveryFloatAloneIsItself) {
  Floats values = any_finite(20000, 1);
  values.insert(values.end(), {kLargest, -kLargest, kDenormal, -kDenormal, 0x1p-126F, -0x1p-126F, 0x1.fffffcp-127F});
  for (int exponent = -149; exponent <= 127; ++exponent) values.push_back(std::ldexp(1.0F, exponent));
  for (const float v : values) {
    const ExactSum sum = sum_of({v});
    ASSERT_EQ(sum.value(), static_cast<double>(v)) << v;
    expect_canonical(sum.limbs());
  }
}

TEST(ExactSum, AgreesWithIntegerArithmetic) {
  // Exponents of 2^-40 to 2^40: as integers of 2^-64 the sums fit 128 bits.
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    Floats values(random() % 300);
    for (auto& v : values) {
      v = std::ldexp(static_cast<float>(static_cast<int>(random() % 0x1ffffff) - 0xffffff),
                     static_cast<int>(random() % 57) - 40);
    }
    Wide expected = 0;
    for (const float v : values) {
      int exponent = 0;
      const auto mantissa = static_cast<std::int64_t>(std::ldexp(std::frexp(v, &exponent), 24));
      expected += static_cast<Wide>(mantissa) * (Wide{1} << (exponent - 24 + 64));
    }
    const auto limbs = sum_of(values).limbs();
    expect_canonical(limbs);
    // 2^-64 is bit 85 of the limbs.
    Wide found = 0;
    for (std::size_t i = limbs.size(); i-- > 3;) found = found * kWord + limbs[i];
    found = found * (Wide{1} << 11) + (limbs[2] >> 21);
    EXPECT_TRUE(found == expected) << round;
    EXPECT_EQ(limbs[0] + limbs[1] + (limbs[2] & 0x1fffff), 0);
    const auto nearest = static_cast<double>(expected) * 0x1p-64;
    EXPECT_NEAR(sum_of(values).value(), nearest, 4 * std::numeric_limits<double>::epsilon() * std::abs(nearest));
  }
}

TEST(ExactSum, NothingIsLostToCancellation) {
  EXPECT_EQ(sum_of({kLargest, kDenormal, -kLargest}).value(), static_cast<double>(kDenormal));
  EXPECT_EQ(sum_of({-kLargest, -kDenormal, kLargest}).value(), -static_cast<double>(kDenormal));
  EXPECT_EQ(sum_of({1.0F, 0x1p-149F, -1.0F, 0x1p-149F}).value(), 0x1p-148);
  Floats values = any_finite(3000, 3);
  const std::size_t half = values.size();
  for (std::size_t i = 0; i < half; ++i) values.push_back(-values[i]);
  for (const float rest : {0.0F, 3 * kDenormal, -kDenormal, 1.5F, -1e30F}) {
    values.push_back(rest);
    std::mt19937 random(4);
    for (int round = 0; round < 5; ++round) {
      std::shuffle(values.begin(), values.end(), random);
      EXPECT_EQ(sum_of(values).value(), static_cast<double>(rest));
    }
    values.erase(std::find(values.begin(), values.end(), rest));
  }
}

TEST(ExactSum, ExactFractionsFromPython) {
  // float(sum(map(fractions.Fraction, values))) of the values as float32; a sum of doubles would give 0 for the first.
  EXPECT_EQ(sum_of({1e30F, 1.0F, -1e30F}).value(), 1.0);
  EXPECT_EQ(sum_of({0.1F, 0.2F, 0.3F, 3e-39F}).value(), 0.6000000163912773);
  EXPECT_EQ(sum_of({3.4e38F, 3.4e38F, -1e20F, 7e-45F}).value(), 6.7999999042887285e+38);
}

TEST(ExactSum, TheOrderDoesNotMatter) {
  Floats values = any_finite(2000, 5);
  const auto expected = sum_of(values).limbs();
  std::mt19937 random(6);
  for (int round = 0; round < 30; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    ASSERT_EQ(sum_of(values).limbs(), expected) << round;
  }
}

TEST(ExactSum, MergeEqualsOneSumInAnyGrouping) {
  const Floats values = any_finite(1000, 7);
  const auto expected = sum_of(values).limbs();
  std::vector<ExactSum> parts;
  for (std::size_t i = 0; i < values.size(); i += 90)
    parts.push_back(sum_of({values.begin() + i, values.begin() + std::min(i + 90, values.size())}));
  std::mt19937 random(8);
  for (int round = 0; round < 30; ++round) {
    std::shuffle(parts.begin(), parts.end(), random);
    ExactSum left, pairs;
    for (const auto& part : parts) left.merge(part);
    for (std::size_t i = 0; i < parts.size(); i += 3) {
      ExactSum group;
      for (std::size_t j = i; j < std::min(i + 3, parts.size()); ++j) group.merge(parts[j]);
      pairs.merge(group);
    }
    ASSERT_EQ(left.limbs(), expected);
    ASSERT_EQ(pairs.limbs(), expected);
  }
  ExactSum doubled = sum_of(values);
  doubled.merge(doubled);
  EXPECT_EQ(doubled.value(), 2 * sum_of(values).value());
}

TEST(ExactSum, LimbsGiveTheSumBack) {
  for (const auto& values : {any_finite(50, 9), Floats{-1.0F}, Floats{-kLargest, -kLargest, 1.0F}, Floats{}}) {
    const ExactSum sum = sum_of(values);
    ExactSum again(sum.limbs());
    EXPECT_EQ(again.limbs(), sum.limbs());
    EXPECT_EQ(again.value(), sum.value());
    again.add(2.5F);
    Floats more = values;
    more.push_back(2.5F);
    EXPECT_EQ(again.limbs(), sum_of(more).limbs());
  }
}

TEST(ExactSum, HoldsMillionsOfTheLargest) {
  constexpr int kMany = 1 << 22;
  ExactSum sum;
  for (int i = 0; i < kMany; ++i) sum.add(-kLargest);
  EXPECT_EQ(sum.value(), -std::ldexp(static_cast<double>(kLargest), 22));
  for (int doubling = 0; doubling < 9; ++doubling) sum.merge(sum);
  EXPECT_EQ(sum.value(), -std::ldexp(static_cast<double>(kLargest), 31)) << "what the header promises";
}

}  // namespace
}  // namespace detent::calibration
