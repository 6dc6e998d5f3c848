#include "calibration/response.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace detent::calibration {
namespace {

constexpr int kOctaves = 24;  // on either side of 1
constexpr int kPerOctave = 64;

std::vector<float> make_points() {
  std::vector<float> positive;
  for (int octave = -kOctaves; octave < kOctaves; ++octave) {
    for (int i = 0; i < kPerOctave; ++i)
      positive.push_back(std::ldexp(1 + static_cast<float>(i) / static_cast<float>(kPerOctave), octave));
  }
  positive.push_back(std::ldexp(1.0F, kOctaves));
  std::vector<float> all;
  std::transform(positive.rbegin(), positive.rend(), std::back_inserter(all), [](float x) { return -x; });
  all.push_back(0);
  all.insert(all.end(), positive.begin(), positive.end());
  return all;
}

}  // namespace

std::span<const float> Response::points() {
  static const std::vector<float> kPoints = make_points();
  return kPoints;
}

Response::Response(std::vector<float> values) : values_(std::move(values)) {
  if (values_.size() != points().size()) throw internal_error("a function that is not tabulated at its points");
}

// The first of the two points around x.
std::size_t Response::segment(double x) const {
  const auto all = points();
  const auto after = std::upper_bound(all.begin() + 1, all.end() - 1, x);
  return static_cast<std::size_t>(after - all.begin()) - 1;
}

double Response::slope(double x) const {
  const std::size_t at = segment(x);
  const auto all = points();
  return (static_cast<double>(values_[at + 1]) - values_[at]) / (static_cast<double>(all[at + 1]) - all[at]);
}

double Response::operator()(double x) const { return values_[segment(x)] + slope(x) * (x - points()[segment(x)]); }

bool Response::is_finite() const {
  return std::all_of(values_.begin(), values_.end(), [](float v) { return std::isfinite(v); });
}

ResponseDensity::ResponseDensity(const Density& density, const Response& response) : response_(response), sums_(1) {
  for (const auto& interval : density.intervals) {
    const double middle = 0.5 * (interval.low + interval.high);
    const double seen = response(middle);
    const double weight = std::pow(response.slope(middle), 2) * interval.count;
    const double square = middle * middle;
    const auto& last = sums_.back();
    sums_.push_back({last.n + interval.count, last.f + interval.count * seen, last.ff + interval.count * seen * seen,
                     last.weight + weight, last.near_zero + weight * square});
    weighted_.emplace_back(interval.low, interval.high, weight);
  }
}

double ResponseDensity::mean_error(const Grid& grid) const {
  const std::size_t from = upto(grid.low), to = upto(grid.high);
  const double inside = rounding_error({weighted_.data() + from, to - from}, grid.step);
  return sums_.back().n > 0 ? (inside + clipping_error(grid)) / sums_.back().n : 0;
}

double ResponseDensity::estimate(const Grid& grid) const {
  const Moments inside = sums_[upto(grid.high)] - sums_[upto(grid.low)];
  const Moments zero = sums_[upto(0.5 * grid.step)] - sums_[upto(-0.5 * grid.step)];
  return (inside.weight - zero.weight) * grid.step * grid.step / 12 + zero.near_zero + clipping_error(grid);
}

double ResponseDensity::clipping_error(const Grid& grid) const {
  const auto about = [](const Moments& m, double at) { return std::max(m.ff - 2 * at * m.f + at * at * m.n, 0.0); };
  return about(sums_[upto(grid.low)], response_(grid.low)) +
         about(sums_.back() - sums_[upto(grid.high)], response_(grid.high));
}

// Intervals whose middle is below x.
std::size_t ResponseDensity::upto(double x) const {
  const auto it = std::partition_point(weighted_.begin(), weighted_.end(),
                                       [&](const Interval& i) { return 0.5 * (i.low + i.high) < x; });
  return static_cast<std::size_t>(it - weighted_.begin());
}

ResponseDensity::Moments ResponseDensity::Moments::operator-(const Moments& other) const {
  return {n - other.n, f - other.f, ff - other.ff, weight - other.weight, near_zero - other.near_zero};
}

}  // namespace detent::calibration
