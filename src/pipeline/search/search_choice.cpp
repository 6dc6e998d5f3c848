#include "pipeline/search/search_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "run/comparison/outcome.h"
#include "searching/front.h"

namespace detent::pipeline {
namespace {

constexpr double kMilli = 1e3;
constexpr const char* kFloat = "fp32";  // the name of the float model
constexpr double kNoise = 0.01;         // of times, below which two are the same
constexpr searching::Margins kAny{kNoise, kNoise, kNoise};
// Mixtures are picked by what the samples of the search say of them: what they gain beside a format alone may be luck.
// Of errors most of all: one that was 0.5 dB better on the 8 samples of a search was 5 dB worse on others.
constexpr searching::Margins kClearly{0.5, 0.1, 0.1};

searching::Costs costs_of(const SearchPoint& point) {
  return {point.error, point.seconds, static_cast<double>(point.bytes)};
}

// How far a point is from what is asked for: 0 where it meets all, else the largest excess as a share of its limit.
double excess(const SearchOptions& options, const SearchPoint& point, double seconds) {
  double worst = 0;
  if (options.max_latency) worst = std::max(worst, seconds / *options.max_latency - 1);
  if (options.max_size)
    worst = std::max(worst, static_cast<double>(point.bytes) / static_cast<double>(*options.max_size) - 1);
  if (const auto& target = options.accuracy.target) {
    const double value = point.value.value_or(0);
    if (value < *target) worst = std::max({worst, (*target - value) / std::abs(*target), 1e-9});
  }
  return worst;
}

double excess(const SearchOptions& options, const SearchPoint& point) { return excess(options, point, point.seconds); }

std::string limits_of(const SearchOptions& options) {
  std::vector<std::string> limits;
  if (options.max_latency) limits.push_back(fmt::format("--max-latency {:.4g}ms", kMilli * *options.max_latency));
  if (options.max_size) limits.push_back(fmt::format("--max-size {}", format_size(*options.max_size)));
  if (options.accuracy.target) limits.push_back(fmt::format("--accuracy-target {}", *options.accuracy.target));
  return fmt::format("{}", fmt::join(limits, " with "));
}

std::string figures_of(const SearchOptions& options, const SearchPoint& point, double seconds) {
  const auto value = options.accuracy.target ? fmt::format(", {:.6g}", point.value.value_or(0)) : std::string();
  return fmt::format("{:.4g} ms, {}, {:.1f} dB{}", kMilli * seconds, format_size(point.bytes), point.sqnr_db, value);
}

using Less = std::function<bool(const SearchPoint&, const SearchPoint&)>;

bool smaller(const SearchPoint& a, const SearchPoint& b) { return a.bytes < b.bytes; }
bool faster(const SearchPoint& a, const SearchPoint& b) { return a.seconds < b.seconds; }
bool is_exact(const SearchPoint& point) { return std::isinf(point.sqnr_db) && point.sqnr_db > 0; }

bool nearer(const SearchPoint& a, const SearchPoint& b) { return a.error < b.error; }

void choose(std::vector<SearchPoint*>& fit, const Less& less, const char* why) {
  if (fit.empty()) return;
  (*std::min_element(fit.begin(), fit.end(), [&](const auto* a, const auto* b) {
    return less(*a, *b);
  }))->chosen.emplace_back(why);
}

}  // namespace

void mark_front(std::vector<SearchPoint>& points) {
  for (auto& point : points) {
    point.on_front = std::none_of(points.begin(), points.end(), [&](const auto& other) {
      return searching::dominates(costs_of(other), costs_of(point), kNoise, point.single ? kClearly : kAny);
    });
  }
}

void choose_points(const SearchOptions& options, std::vector<SearchPoint>& points) {
  const bool limited = options.max_latency || options.max_size;
  const bool asked = limited || options.accuracy.target;
  std::vector<SearchPoint*> fit, others;
  for (auto& point : points) {
    const bool is_float = is_exact(point);  // by its name, or since nothing of it is better in integers
    const bool is_useful = asked || point.sqnr_db >= run::kCloseDb;
    const bool may_be_chosen = !is_float || (limited && (options.may_be_float || point.name != kFloat));
    if (!is_float) others.push_back(&point);
    if (excess(options, point) == 0 && is_useful && may_be_chosen) fit.push_back(&point);
  }
  if (fit.empty() && asked) {
    if (others.empty()) others.push_back(&points.front());
    const auto& nearest = **std::min_element(others.begin(), others.end(), [&](const auto* a, const auto* b) {
      return excess(options, *a) < excess(options, *b);
    });
    throw resource_error(fmt::format("none of {} measured models meets {}; the nearest is {}: {}", points.size(),
                                     limits_of(options), nearest.name, figures_of(options, nearest, nearest.seconds)),
                         "give that much, or more of --points");
  }
  if (std::any_of(fit.begin(), fit.end(), [](const auto* point) { return point->on_front; }))
    std::erase_if(fit, [](const auto* point) { return !point->on_front; });
  if (!limited) {
    choose(fit, smaller, "smallest");
    choose(fit, faster, "fastest");
    choose(fit, nearer, "most accurate");
  } else if (!options.accuracy.target) {
    choose(fit, nearer, "meets the limits");
  } else {
    choose(fit, options.max_latency ? smaller : faster, "meets the limits");
  }
}

bool serves(const SearchOptions& options, const SearchPoint& point, double seconds) {
  return excess(options, point, seconds) == 0 && (options.accuracy.target || point.sqnr_db >= run::kCloseDb);
}

Error no_machine_error(const SearchOptions& options, const std::vector<SearchPoint>& points,
                       const std::vector<Machine>& machines,
                       const std::vector<std::vector<std::optional<double>>>& seconds) {
  double least = std::numeric_limits<double>::infinity();
  std::string nearest;
  for (std::size_t m = 0; m < machines.size(); ++m) {
    for (std::size_t p = 0; p < points.size(); ++p) {
      if (!seconds[m][p] || excess(options, points[p], *seconds[m][p]) >= least) continue;
      least = excess(options, points[p], *seconds[m][p]);
      nearest =
          fmt::format("{} on {}: {}", points[p].name, machines[m].name, figures_of(options, points[p], *seconds[m][p]));
    }
  }
  const auto limits = limits_of(options);
  return resource_error(
      fmt::format("none of {} serves{}{} in its memory; the nearest is {}", count_with_noun(machines.size(), "machine"),
                  limits.empty() ? "" : " within ", limits, nearest),
      "give more, or another machine");
}

}  // namespace detent::pipeline
