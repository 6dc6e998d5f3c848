#include "calibration/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/numbers.h"

namespace detent::calibration {

const Method& method_of(CalibrationMethod id) {
  const auto all = all_methods();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Method* method) { return method->id == id; });
  if (found == all.end()) throw internal_error("a calibration method without a file");
  return **found;
}

std::string_view method_name(CalibrationMethod id) { return kCalibrationMethods[static_cast<std::size_t>(id)]; }

bool needs_votes(const MethodConfig& config, const QuantConfig& format) {
  const auto all = all_methods();
  return std::any_of(all.begin(), all.end(), [&](const Method* method) {
    return method->needs_votes != nullptr && method->needs_votes(config, format);
  });
}

Range find_range(const MethodInput& input) {
  const Method& method = method_of(input.config.method);
  if (method.needs_histogram && input.summary.histogram.empty()) {
    throw bad_input(fmt::format("the statistics of tensor '{}' hold no histogram", input.tensor),
                    "calibrate without --no-histogram, or use --method minmax");
  }
  return method.range(input);
}

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
double clipping_error_integral(double u) {
  if constexpr (power == Power::one) return u * std::abs(u) * 0.5;
  return u * u * u / 3;
}

template <Power power>
double raised(double d) {
  return power == Power::one ? std::abs(d) : d * d;
}

// Error at a point, in units of steps or of their squares.
template <Power power>
double at_point(double x, const Grid& grid) {
  return raised<power>(x / grid.step - round_even(std::clamp(x, grid.low, grid.high) / grid.step));
}

// Sum over an interval, in the same units; the part beyond the grid is clipped.
template <Power power>
double error_over_interval(const Interval& i, const Grid& grid) {
  if (i.per_width == 0) return i.count * at_point<power>(0.5 * (i.low + i.high), grid);
  const double from = grid.low / grid.step;
  const double to = grid.high / grid.step;
  const double low = i.low / grid.step;
  const double high = i.high / grid.step;
  double sum = 0;
  if (high > from && low < to) sum += sawtooth<power>(std::min(high, to)) - sawtooth<power>(std::max(low, from));
  if (high > to)
    sum += clipping_error_integral<power>(high - to) - clipping_error_integral<power>(std::max(low - to, 0.0));
  if (low < from)
    sum += clipping_error_integral<power>(from - low) - clipping_error_integral<power>(std::max(from - high, 0.0));
  return i.per_width * grid.step * sum;
}

// The same for intervals within the grid. Always in the same lanes, so that the result does not depend on how wide the
// machine's vectors are.
template <Power power>
[[gnu::always_inline]] inline double sum_within(const Interval* intervals, std::size_t count, double step) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  std::size_t i = 0;
  const double per_step = 1 / step;
  const auto term = [&](const Interval& at) {
    return at.per_width * (sawtooth<power>(at.high * per_step) - sawtooth<power>(at.low * per_step));
  };
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) lanes[k] += term(intervals[i + k]);
  }
  for (; i < count; ++i) lanes[i % kLanes] += term(intervals[i]);
  return std::accumulate(lanes.begin(), lanes.end(), 0.0) * step;
}

DETENT_VECTOR_CLONES
double sum_within_one(const Interval* intervals, std::size_t count, double step) {
  return sum_within<Power::one>(intervals, count, step);
}

DETENT_VECTOR_CLONES
double sum_within_two(const Interval* intervals, std::size_t count, double step) {
  return sum_within<Power::two>(intervals, count, step);
}

template <Power power>
double mean(const Density& density, const Grid& grid) {
  const auto& all = density.intervals;
  const auto first = std::partition_point(all.begin(), all.end(), [&](const auto& i) { return i.low < grid.low; });
  const auto last = std::partition_point(first, all.end(), [&](const auto& i) { return i.high <= grid.high; });
  double sum = 0;
  for (auto i = all.begin(); i != first; ++i) sum += error_over_interval<power>(*i, grid);
  for (auto i = last; i != all.end(); ++i) sum += error_over_interval<power>(*i, grid);
  const auto count = static_cast<std::size_t>(last - first);
  const Interval* inside = all.data() + (first - all.begin());
  sum += power == Power::one ? sum_within_one(inside, count, grid.step) : sum_within_two(inside, count, grid.step);
  for (auto i = first; i != last; ++i) {
    if (i->per_width == 0) sum += error_over_interval<power>(*i, grid);  // a point: the sum above passed over it
  }
  const double unit = power == Power::one ? grid.step : grid.step * grid.step;
  return density.total > 0 ? unit * sum / density.total : 0;
}

// Over the values of intervals that lie within the grid, 0 being one of its points.
double rounding_error(std::span<const Interval> intervals, double step) {
  double sum = sum_within_two(intervals.data(), intervals.size(), step);
  for (const auto& interval : intervals) {
    if (interval.per_width != 0) continue;
    const double middle = 0.5 * (interval.low + interval.high) / step;
    sum += interval.count * raised<Power::two>(middle - round_even(middle));
  }
  return step * step * sum;
}

}  // namespace

Interval::Interval(double from, double to, double values) : low(from), high(to), count(values) {
  // Bins are a good part of an octave wide. Only one that an extreme cuts can be too narrow for differences of
  // integrals.
  const double width = high - low;
  per_width = width > 1e-7 * std::max(std::abs(low), std::abs(high)) ? count / width : 0;
}

Density density_of(const Summary& summary) {
  Density density;
  if (!summary.has_values()) return density;
  density.min = summary.extremes.lowest();
  density.max = summary.extremes.highest();
  for (const auto& bin : summary.histogram.bins()) {
    const double low = std::clamp<double>(bin.low, density.min, density.max);
    const double high = std::clamp<double>(bin.high, density.min, density.max);
    density.intervals.emplace_back(low, high, static_cast<double>(bin.count));
    density.total += static_cast<double>(bin.count);
  }
  return density;
}

double mean_error(const Density& density, const Grid& grid, Power power) {
  return power == Power::one ? mean<Power::one>(density, grid) : mean<Power::two>(density, grid);
}

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
