#include <algorithm>
#include <cmath>
#include <vector>

#include "calibration/methods.h"

namespace detent::calibration {
namespace {

// Values with exact counts, ascending. Each bin stands at its middle, which is never off by more than half its width:
// spreading its values over it would be closer for smooth data and twice as far off where they are all the same. The
// bin of zeros stands at 0.
struct Points {
  struct Point {
    double value = 0;
    std::uint64_t count = 0;
  };
  std::vector<Point> points;
  std::uint64_t total = 0;
  double smallest = 0, largest = 0;  // exact

  double order_statistic(std::uint64_t rank) const {
    if (rank == 0) return smallest;
    if (rank + 1 >= total) return largest;
    std::uint64_t before = 0;
    for (const auto& p : points) {
      before += p.count;
      if (rank < before) return p.value;
    }
    return largest;
  }

  double percentile(double percent) const {
    const double position = percent / 100 * static_cast<double>(total - 1);
    const double below = std::floor(position);
    const auto rank = static_cast<std::uint64_t>(below);
    const double low = order_statistic(rank);
    return low + (order_statistic(rank + 1) - low) * (position - below);
  }
};

Points points_of(const Summary& summary) {
  Points p;
  p.smallest = summary.extremes.lowest();
  p.largest = summary.extremes.highest();
  for (const auto& bin : summary.histogram.bins()) {
    const double low = std::clamp<double>(bin.low, p.smallest, p.largest);
    const double high = std::clamp<double>(bin.high, p.smallest, p.largest);
    const bool zeros = low == 0 && bin.high > 0;
    p.points.push_back({zeros ? 0 : 0.5 * (low + high), bin.count});
    p.total += bin.count;
  }
  return p;
}

Points absolute(Points p) {
  const double low = p.smallest;
  const double high = p.largest;
  p.largest = std::max(-low, high);
  for (auto& point : p.points) point.value = std::abs(point.value);
  std::sort(p.points.begin(), p.points.end(), [](const auto& a, const auto& b) { return a.value < b.value; });
  p.smallest = p.points.front().value;
  if (low >= 0) p.smallest = low;
  if (high <= 0) p.smallest = -high;
  return p;
}

}  // namespace

Range percentile_range(const Summary& summary, double percentile, bool two_sided) {
  const Points points = points_of(summary);
  const double low = points.smallest;
  const double high = points.largest;
  if (two_sided) {
    const double cut = (100 - percentile) / 2;
    return {static_cast<float>(points.percentile(cut)), static_cast<float>(points.percentile(100 - cut))};
  }
  const double t = absolute(points).percentile(percentile);
  return {static_cast<float>(std::max(-t, low)), static_cast<float>(std::min(t, high))};
}

namespace {

Range range_by(const MethodInput& input) {
  return percentile_range(input.summary, input.config.percentile, input.config.two_sided);
}

}  // namespace

namespace methods {

extern const Method percentile{.id = CalibrationMethod::percentile, .range = range_by};

}  // namespace methods

}  // namespace detent::calibration
