#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "calibration/methods.h"

namespace detent::calibration {
namespace {

// A cheap stand-in for mean_error(): a uniform error within the grid, exact errors beyond it, and next to 0, where
// values less than half a step away round to it. Each evaluation takes four searches instead of a walk over all
// intervals.
class Estimate {
 public:
  explicit Estimate(const Density& density) : intervals_(density.intervals) {
    sums_.resize(intervals_.size() + 1);
    for (std::size_t i = 0; i < intervals_.size(); ++i) {
      const Interval& at = intervals_[i];
      const double mid = 0.5 * (at.low + at.high);
      const double width = at.high - at.low;
      sums_[i + 1] = {sums_[i].n + at.count, sums_[i].x + at.count * mid,
                      sums_[i].xx + at.count * (mid * mid + width * width / 12)};
    }
  }

  double operator()(const Grid& grid) const {
    const Moments whole = sums_.back();
    const Moments below = sums_[upto(grid.low)];
    const Moments up_to_high = sums_[upto(grid.high)];
    const Moments above = whole - up_to_high;
    const Moments near_zero = sums_[upto(0.5 * grid.step)] - sums_[upto(-0.5 * grid.step)];
    const double inside = up_to_high.n - below.n - near_zero.n;
    return inside * grid.step * grid.step / 12 + near_zero.xx + about(below, grid.low) + about(above, grid.high);
  }

 private:
  struct Moments {
    double n = 0, x = 0, xx = 0;
    Moments operator-(const Moments& other) const { return {n - other.n, x - other.x, xx - other.xx}; }
  };
  static double about(const Moments& m, double at) { return std::max(m.xx - 2 * at * m.x + at * at * m.n, 0.0); }
  std::size_t upto(double x) const {
    const auto it = std::partition_point(intervals_.begin(), intervals_.end(),
                                         [&](const Interval& i) { return 0.5 * (i.low + i.high) < x; });
    return static_cast<std::size_t>(it - intervals_.begin());
  }

  const std::vector<Interval>& intervals_;
  std::vector<Moments> sums_;
};

// Fractions of a bound from 1 down, so many to an octave.
std::vector<double> fractions(int per_octave, int octaves) {
  std::vector<double> f;
  for (int i = 0; i <= per_octave * octaves; ++i) f.push_back(std::exp2(-static_cast<double>(i) / per_octave));
  return f;
}

// The bounds (low <= 0 <= high) under search, and the least error so far.
struct Search {
  double low, high;
  double least = std::numeric_limits<double>::infinity();

  template <class Error>
  void consider(double candidate_low, double candidate_high, const Error& error) {
    const double e = error(candidate_low, candidate_high);
    if (!(e < least)) return;
    least = e;
    low = candidate_low;
    high = candidate_high;
  }
};

enum class Bounds { both_alike, low, high };

template <class Error>
void scan(Search& search, Bounds which, std::span<const double> factors, double min, double max, const Error& error) {
  const Search from = search;
  for (const double f : factors) {
    const double low = which == Bounds::high ? from.low : std::max(from.low * f, min);
    const double high = which == Bounds::low ? from.high : std::min(from.high * f, max);
    search.consider(low, high, error);
  }
}

// Factors around 1: 2^(k / per_octave) for |k| <= reach.
std::vector<double> around(int per_octave, int reach) {
  std::vector<double> f;
  for (int k = -reach; k <= reach; ++k) f.push_back(std::exp2(static_cast<double>(k) / per_octave));
  return f;
}

// How often the scale that covers the extremes is best halved. Each halving clips more and rounds less, so once
// clipping has taken over nothing further down can be better.
template <class Error>
int best_halving(const Error& error_after, int first = 0) {
  constexpr int kMost = 40;
  double least = std::numeric_limits<double>::infinity();
  int best = first;
  for (int times = first; times <= kMost; ++times) {
    const double error = error_after(times);
    if (error > 16 * least) break;
    if (!(error < least)) continue;
    least = error;
    best = times;
  }
  return best;
}

Range to_range(double low, double high) { return {static_cast<float>(low), static_cast<float>(high)}; }

// Coarse to fine: whole octaves of candidates by the estimate, first both bounds together and then each in turn, then
// ever finer steps around the best by the exact error. Both are functions of a grid.
template <class Estimated, class Exact>
Range search_range(const Density& density, const Quantizer& quantizer, const Estimated& estimate, const Exact& error) {
  const double min = std::min(density.min, 0.0);
  const double max = std::max(density.max, 0.0);
  const auto estimated = [&](double low, double high) { return estimate(quantizer(to_range(low, high))); };
  const auto exact = [&](double low, double high) { return error(quantizer(to_range(low, high))); };
  std::vector<Bounds> bounds{Bounds::both_alike};
  if (min < 0 && max > 0) bounds = {Bounds::both_alike, Bounds::low, Bounds::high};

  Search coarse{min, max};
  const auto octaves = fractions(8, 24);
  scan(coarse, Bounds::both_alike, octaves, min, max, estimated);
  for (int round = 0; bounds.size() > 1 && round < 3; ++round) {
    for (const Bounds which : {Bounds::low, Bounds::high}) {
      Search side = coarse;
      (which == Bounds::low ? side.low : side.high) = which == Bounds::low ? min : max;
      scan(side, which, octaves, min, max, estimated);
      if (side.least < coarse.least) coarse = side;
    }
  }
  Search fine{min, max};
  fine.consider(min, max, exact);
  fine.consider(coarse.low, coarse.high, exact);
  for (const int per_octave : {16, 64, 256}) {
    const auto factors = around(per_octave, 6);
    for (const Bounds which : bounds) scan(fine, which, factors, min, max, exact);
  }
  return to_range(fine.low, fine.high);
}

}  // namespace

Range mse_range(const Summary& summary, const Quantizer& quantizer, const Response* response) {
  const Density density = density_of(summary);
  if (response == nullptr) {
    return search_range(density, quantizer, Estimate(density),
                        [&](const Grid& grid) { return mean_error(density, grid, Power::two); });
  }
  const ResponseDensity seen(density, *response);
  return search_range(
      density, quantizer, [&](const Grid& grid) { return seen.estimate(grid); },
      [&](const Grid& grid) { return seen.mean_error(grid); });
}

Range mse_power_of_two_range(const Summary& summary, const Quantizer& quantizer) {
  const Density density = density_of(summary);
  const Range extremes = minmax_range(summary, false);
  const auto halved = [&](int times) {
    return to_range(std::ldexp(extremes.min, -times), std::ldexp(extremes.max, -times));
  };
  // Where powers of two are rounded to the nearest, that of the extremes may cut off what the next holds.
  const Grid whole = quantizer(extremes);
  const bool cuts = extremes.max > whole.high + whole.step || extremes.min < whole.low - whole.step;
  const auto error_after = [&](int times) { return mean_error(density, quantizer(halved(times)), Power::two); };
  return halved(best_halving(error_after, cuts ? -1 : 0));
}

int best_power_of_two(const Summary& summary, int bits) {
  const Density density = density_of(summary);
  const double highest = std::exp2(bits - 1) - 1;
  const double largest = std::max(-density.min, density.max);
  if (!(largest > 0)) return 0;
  const int first = static_cast<int>(std::ceil(std::log2(largest / highest)));
  return first - best_halving([&](int times) {
           const double step = std::ldexp(1.0, first - times);
           return mean_error(density, {step, -(highest + 1) * step, highest * step}, Power::two);
         });
}

Range most_common_power_of_two_range(const Votes& votes, int bits) {
  const auto best =
      std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second <= b.second; });
  constexpr double kLargest = std::numeric_limits<float>::max();
  const double t = std::min(std::ldexp(std::exp2(bits - 1) - 1, best == votes.end() ? 0 : best->first), kLargest);
  return to_range(-t, t);
}

namespace {

Range best_range(const MethodInput& input) {
  const Summary& summary = input.summary;
  if (!input.format.power_of_two_scale) return mse_range(summary, input.quantizer, input.response);
  if (!input.config.most_common) return mse_power_of_two_range(summary, input.quantizer);
  const QuantType type = input.format.activation_type;
  const bool wide = type == QuantType::int16 || type == QuantType::uint16;
  const Votes& votes = wide ? summary.votes_16_bit : summary.votes_8_bit;
  if (votes.empty() && !summary.all_zero()) {
    throw bad_input(
        fmt::format("the statistics of tensor '{}' do not say which scale is best for most samples", input.tensor),
        "calibrate with --set most-common");
  }
  return most_common_power_of_two_range(votes, wide ? 16 : 8);
}

bool votes_needed(const MethodConfig& config, const QuantConfig& format) {
  return format.power_of_two_scale && config.most_common;
}

}  // namespace

namespace methods {

extern const Method mse{.id = CalibrationMethod::mse, .range = best_range, .needs_votes = votes_needed};

}  // namespace methods

}  // namespace detent::calibration
