#include "quantization/blocks/bit_choice.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace detent::quantization {
namespace {

using Options = std::vector<BitOption>;

// Positions of the options on the lower convex hull of error over bytes, from the smallest on.
std::vector<std::size_t> hull_of(const Options& options) {
  std::vector<std::size_t> order(options.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto &p = options[a], &q = options[b];
    return p.bytes != q.bytes ? p.bytes < q.bytes : p.error < q.error;
  });
  // Gain for each byte between two options.
  const auto slope = [&](std::size_t a, std::size_t b) {
    return (options[a].error - options[b].error) / static_cast<double>(options[b].bytes - options[a].bytes);
  };
  std::vector<std::size_t> hull;
  for (const auto next : order) {
    if (!hull.empty() && !(options[next].error < options[hull.back()].error)) continue;
    while (hull.size() > 1 && slope(hull[hull.size() - 2], hull.back()) <= slope(hull.back(), next)) hull.pop_back();
    hull.push_back(next);
  }
  return hull;
}

struct Step {
  std::size_t group = 0, from = 0, to = 0;  // options
  double gain = 0;                          // for each byte
};

std::vector<Step> steps_of(std::span<const Options> groups, const std::vector<std::vector<std::size_t>>& hulls) {
  std::vector<Step> steps;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 1; i < hulls[g].size(); ++i) {
      const auto &from = groups[g][hulls[g][i - 1]], &to = groups[g][hulls[g][i]];
      steps.push_back(
          {g, hulls[g][i - 1], hulls[g][i], (from.error - to.error) / static_cast<double>(to.bytes - from.bytes)});
    }
  }
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.gain > b.gain; });
  return steps;
}

// The change of one group that lowers the error most and fits.
std::optional<Step> best_single(std::span<const Options> groups, const std::vector<std::size_t>& chosen,
                                std::int64_t left) {
  std::optional<Step> best;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& now = groups[g][chosen[g]];
    for (std::size_t i = 0; i < groups[g].size(); ++i) {
      const auto& other = groups[g][i];
      const double gain = now.error - other.error;
      if (other.bytes - now.bytes <= left && gain > (best ? best->gain : 0)) best = Step{g, chosen[g], i, gain};
    }
  }
  return best;
}

using Choice = std::vector<std::size_t>;

std::int64_t bytes_of(std::span<const Options> groups, const Choice& chosen) {
  std::int64_t sum = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) sum += groups[g][chosen[g]].bytes;
  return sum;
}

double error_of(std::span<const Options> groups, const Choice& chosen) {
  double sum = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) sum += groups[g][chosen[g]].error;
  return sum;
}

// What is left over goes to single changes.
Choice spend_remaining_bytes(std::span<const Options> groups, Choice chosen, std::int64_t budget) {
  std::int64_t left = budget - bytes_of(groups, chosen);
  while (const auto step = best_single(groups, chosen, left)) {
    left -= groups[step->group][step->to].bytes - groups[step->group][step->from].bytes;
    chosen[step->group] = step->to;
  }
  return chosen;
}

Choice along_hulls(std::span<const Options> groups, const std::vector<std::vector<std::size_t>>& hulls, Choice chosen,
                   std::int64_t budget) {
  std::int64_t left = budget - bytes_of(groups, chosen);
  for (const auto& step : steps_of(groups, hulls)) {
    const auto bytes = groups[step.group][step.to].bytes - groups[step.group][step.from].bytes;
    if (chosen[step.group] != step.from || bytes > left) continue;
    left -= bytes;
    chosen[step.group] = step.to;
  }
  return chosen;
}

// The best of all choices, with bytes beyond the smallest rounded up to units of which `budget` leaves a few thousand.
Choice by_table(std::span<const Options> groups, const Choice& smallest, std::int64_t budget) {
  constexpr std::size_t kEntries = std::size_t{1} << 24;
  const auto units = static_cast<std::int64_t>(std::clamp<std::size_t>(kEntries / groups.size(), 256, 16384));
  const std::int64_t left = budget - bytes_of(groups, smallest), unit = std::max<std::int64_t>(1, left / units);
  const auto size = static_cast<std::size_t>(left / unit) + 1;
  std::vector<double> least(size, 0.0), next(size);  // by the units that groups so far may take
  std::vector<std::uint8_t> taken(groups.size() * size);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::fill(next.begin(), next.end(), std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i < groups[g].size(); ++i) {
      const auto more = groups[g][i].bytes - groups[g][smallest[g]].bytes;
      const auto cost = static_cast<std::size_t>((more + unit - 1) / unit);
      for (std::size_t at = cost; at < size; ++at) {
        const double error = least[at - cost] + groups[g][i].error;
        if (!(error < next[at])) continue;
        next[at] = error;
        taken[g * size + at] = static_cast<std::uint8_t>(i);
      }
    }
    least.swap(next);
  }
  Choice chosen(groups.size());
  std::size_t at = size - 1;
  for (std::size_t g = groups.size(); g-- > 0;) {
    chosen[g] = taken[g * size + at];
    const auto more = groups[g][chosen[g]].bytes - groups[g][smallest[g]].bytes;
    at -= static_cast<std::size_t>((more + unit - 1) / unit);
  }
  return chosen;
}

}  // namespace

std::optional<std::vector<std::size_t>> choose_bits(std::span<const Options> groups, std::int64_t budget) {
  std::vector<std::vector<std::size_t>> hulls;
  Choice smallest;
  for (const auto& options : groups) {
    hulls.push_back(hull_of(options));
    smallest.push_back(hulls.back().front());
  }
  if (bytes_of(groups, smallest) > budget) return std::nullopt;
  if (groups.empty()) return smallest;
  const auto one = spend_remaining_bytes(groups, along_hulls(groups, hulls, smallest, budget), budget);
  const auto other = spend_remaining_bytes(groups, by_table(groups, smallest, budget), budget);
  return error_of(groups, other) < error_of(groups, one) ? other : one;
}

}  // namespace detent::quantization
