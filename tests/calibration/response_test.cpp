#include "calibration/methods.h"

#include <cmath>

#include "calibration/support.h"

namespace detent::calibration {
namespace {

using namespace test;  // NOLINT

Response tabulate(const std::function<double(double)>& f) {
  std::vector<float> values;
  for (const float x : Response::points()) values.push_back(static_cast<float>(f(x)));
  return Response(std::move(values));
}

double silu(double x) { return x / (1 + std::exp(-x)); }

// The mean over the values themselves.
double error_behind(const Floats& values, const Grid& grid, const std::function<double(double)>& f) {
  double sum = 0;
  for (const float x : values) {
    const double rounded = std::clamp(std::nearbyint(x / grid.step) * grid.step, grid.low, grid.high);
    sum += std::pow(f(x) - f(rounded), 2);
  }
  return sum / static_cast<double>(values.size());
}

TEST(Response, IsTheFunctionNearItsPoints) {
  const auto f = tabulate(silu);
  for (const double x : {-100.0, -20.0, -3.3, -0.7, 0.0, 1e-9, 0.3, 5.7, 33.0, 1e6})
    EXPECT_NEAR(f(x), silu(x), 1e-4 * std::max(1.0, std::abs(x))) << x;
  EXPECT_NEAR(f.slope(1e9), 1, 1e-6) << "goes on beyond the last point";
  EXPECT_FALSE(tabulate([](double x) { return std::exp(x); }).is_finite());
}

TEST(Response, OfTheValueItselfChangesNothing) {
  const auto identity = tabulate([](double x) { return x; });
  for (const auto& [name, values] : all_kinds()) {
    if (name == "masked") continue;  // sums of squares of 1e38 leave nothing of the others
    const Density density = density_of(summary_of(values));
    if (density.total == 0) continue;
    const ResponseDensity seen(density, identity);
    for (const double share : {1.0, 0.5, 0.1}) {
      const Range range{static_cast<float>(share * density.min), static_cast<float>(share * density.max)};
      const Grid grid = uint8()(range);
      const double plain = mean_error(density, grid, Power::two);
      EXPECT_NEAR(seen.mean_error(grid), plain, 0.02 * plain) << name << " " << share;
    }
  }
}

TEST(Response, MeasuresTheErrorBehindTheFunction) {
  Floats values = normal(50000, 3);
  for (float& x : values) x *= 6;
  const Density density = density_of(summary_of(values));
  const ResponseDensity seen(density, tabulate(silu));
  for (const Range range : {Range{-25, 25}, Range{-6, 25}, Range{-3, 20}, Range{-1, 12}}) {
    const Grid grid = uint8()(range);
    const double real = error_behind(values, grid, silu);
    EXPECT_NEAR(seen.mean_error(grid), real, 0.1 * real) << range.min << " to " << range.max;
  }
}

TEST(Response, RangesLeaveOutWhatReadersDoNotSee) {
  Floats values = normal(50000, 4);
  for (float& x : values) x *= 10;
  const Summary summary = summary_of(values);
  const auto f = tabulate(silu);
  const Range plain = mse_range(summary, uint8());
  const Range seen = mse_range(summary, uint8(), &f);
  EXPECT_LT(plain.min, -20);
  EXPECT_GT(seen.min, -7);
  EXPECT_GT(seen.max, 25);
  EXPECT_LT(error_behind(values, uint8()(seen), silu), 0.5 * error_behind(values, uint8()(plain), silu));
}

}  // namespace
}  // namespace detent::calibration
