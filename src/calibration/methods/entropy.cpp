#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "calibration/methods.h"

namespace detent::calibration {
namespace {

// Equal bins of |x| from 0 to `largest`.
std::vector<double> linear_histogram(const Density& density, std::size_t bins, double largest) {
  std::vector<double> counts(bins, 0.0);
  const double width = largest / static_cast<double>(bins);
  const auto bin_of = [&](double x) { return std::min(static_cast<std::size_t>(x / width), bins - 1); };
  for (const auto& i : density.intervals) {
    const double low = std::min(std::abs(i.low), std::abs(i.high));
    const double high = std::max(std::abs(i.low), std::abs(i.high));
    const std::size_t first = bin_of(low);
    const std::size_t last = bin_of(high);
    if (first == last) {
      counts[first] += i.count;
      continue;
    }
    for (std::size_t b = first; b <= last; ++b) {
      const double from = std::max(low, static_cast<double>(b) * width);
      const double to = b == last ? high : std::min(high, static_cast<double>(b + 1) * width);
      counts[b] += i.count * (std::max(to - from, 0.0) / (high - low));
    }
  }
  counts[0] = counts[1];
  return counts;
}

// Of fewer values most bins are empty, levels hold one bin each, and the narrowest range fits best.
constexpr double kValuesInBin = 4;

double x_log_x(double x) { return x > 0 ? x * std::log(x) : 0; }

// Sums over the first bins: counts, non-empty bins, count * log(count).
struct Sums {
  std::vector<double> count, used, logs;

  explicit Sums(const std::vector<double>& counts)
      : count(counts.size() + 1), used(counts.size() + 1), logs(counts.size() + 1) {
    for (std::size_t b = 0; b < counts.size(); ++b) {
      count[b + 1] = count[b] + counts[b];
      used[b + 1] = used[b] + (counts[b] > 0 ? 1 : 0);
      logs[b + 1] = logs[b] + x_log_x(counts[b]);
    }
  }
};

// KL(P || Q) = sum p/P log((p/P) / (q/Q)) = (sum p log p - sum p log q) / P + log(Q / P); q is the same all over a
// group.
double divergence(const std::vector<double>& counts, const Sums& sums, std::size_t end, std::size_t levels) {
  const double whole = sums.count.back();
  const double inside = sums.count[end];
  const double beyond = whole - inside;
  const double last = counts[end - 1];
  const double p_log_p = sums.logs[end] - x_log_x(last) + x_log_x(last + beyond);
  double p_log_q = 0;
  for (std::size_t j = 0; j < levels; ++j) {
    const std::size_t from = j * end / levels;
    const std::size_t to = (j + 1) * end / levels;
    const bool outer = j + 1 == levels;
    const double mass = sums.count[to] - sums.count[from];
    const double p = mass + (outer ? beyond : 0);
    if (p <= 0) continue;
    if (mass <= 0) return std::numeric_limits<double>::infinity();  // only beyond: Q cannot hold it
    const double used = sums.used[to] - sums.used[from] + (outer && last <= 0 && beyond > 0 ? 1 : 0);
    p_log_q += p * std::log(mass / used);
  }
  return (p_log_p - p_log_q) / whole + std::log(inside / whole);
}

}  // namespace

Range entropy_range(const Summary& summary, std::size_t bins, std::size_t levels) {
  const Density density = density_of(summary);
  const double largest = std::max(-density.min, density.max);
  // Nothing to spread, or values that bins of this width would underflow on.
  if (!(largest / static_cast<double>(bins) > 0)) return minmax_range(summary, false);
  const auto counts = linear_histogram(density, bins, largest);
  const Sums sums(counts);
  if (sums.count.back() < kValuesInBin * static_cast<double>(bins)) return minmax_range(summary, false);
  const std::size_t stride = std::max<std::size_t>(levels / 16, 1);
  double least = std::numeric_limits<double>::infinity();
  std::size_t best = bins;
  for (std::size_t end = bins; end >= levels; end -= std::min(stride, end)) {
    const double kl = divergence(counts, sums, end, levels);
    if (kl >= least) continue;
    least = kl;
    best = end;
  }
  const double t = best == bins ? largest : largest * static_cast<double>(best) / static_cast<double>(bins);
  return {static_cast<float>(std::max(-t, density.min)), static_cast<float>(std::min(t, density.max))};
}

namespace {

Range range_by(const MethodInput& input) {
  return entropy_range(input.summary, input.config.entropy_bins, input.config.entropy_levels);
}

}  // namespace

namespace methods {

extern const Method entropy{.id = CalibrationMethod::entropy, .range = range_by};

}  // namespace methods

}  // namespace detent::calibration
