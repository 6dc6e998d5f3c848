#include "calibrate/density.h"

#include <algorithm>
#include <cmath>

namespace detent::calibration {
namespace {

// Half to even, for |u| < 2^51; a library call would take most of the time here.
double round_even(double u) {
  constexpr double kShift = 0x1.8p52;
  return (u + kShift) - kShift;
}

// Integral of |t - round(t)|^p from 0 to u. Each whole period adds 1/4 (p = 1) or 1/12 (p = 2).
template <Power power>
double sawtooth(double u) {
  const double n = round_even(u);
  const double d = u - n;
  if constexpr (power == Power::one) return n * 0.25 + d * std::abs(d) * 0.5;
  return n / 12 + d * d * d / 3;
}

// Integral of |t|^p from 0 to u, odd in u.
template <Power power>
double tail(double u) {
  if constexpr (power == Power::one) return u * std::abs(u) * 0.5;
  return u * u * u / 3;
}

template <Power power>
double at(double x, const Grid& grid) {
  const double q = round_even(std::clamp(x, grid.low, grid.high) / grid.step) * grid.step;
  const double d = std::abs(x - q);
  return power == Power::one ? d : d * d;
}

// Mean of the error over one interval. Grid points within half a step of the ends of the grid round as inside.
template <Power power>
double over(const Interval& i, const Grid& grid) {
  const double width = i.high - i.low;
  // Too narrow for differences of integrals: the error is the same all over it.
  if (width <= grid.step * 1e-7) return at<power>(0.5 * (i.low + i.high), grid);
  double sum = 0;
  const double low = std::clamp(i.low, grid.low, grid.high);
  const double high = std::clamp(i.high, grid.low, grid.high);
  const double scale = power == Power::one ? grid.step * grid.step : grid.step * grid.step * grid.step;
  if (high > low) sum += scale * (sawtooth<power>(high / grid.step) - sawtooth<power>(low / grid.step));
  if (i.high > grid.high) sum += tail<power>(i.high - grid.high) - tail<power>(std::max(i.low, grid.high) - grid.high);
  if (i.low < grid.low) sum += tail<power>(grid.low - i.low) - tail<power>(grid.low - std::min(i.high, grid.low));
  return sum / width;
}

template <Power power>
double mean(const Density& density, const Grid& grid) {
  double sum = 0;
  for (const auto& i : density.intervals) sum += i.count * over<power>(i, grid);
  return density.total > 0 ? sum / density.total : 0;
}

}  // namespace

Density density_of(const Summary& summary) {
  Density density;
  if (!summary.has_values()) return density;
  density.min = summary.extremes.lowest();
  density.max = summary.extremes.highest();
  for (const auto& bin : summary.histogram.bins()) {
    const double low = std::clamp<double>(bin.low, density.min, density.max);
    const double high = std::clamp<double>(bin.high, density.min, density.max);
    density.intervals.push_back({low, high, static_cast<double>(bin.count)});
    density.total += static_cast<double>(bin.count);
  }
  return density;
}

double mean_error(const Density& density, const Grid& grid, Power power) {
  return power == Power::one ? mean<Power::one>(density, grid) : mean<Power::two>(density, grid);
}

}  // namespace detent::calibration
