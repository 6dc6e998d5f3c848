#include "calibration/methods.h"

#include "calibration/support.h"

namespace detent::calibration {
namespace {

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

}  // namespace
}  // namespace detent::calibration
