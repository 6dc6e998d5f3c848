#include "run/comparison/latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "run/samples/samples.h"

namespace detent::run {
namespace {

/// The value below which a share of all lie; the nearest one.
double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto place = static_cast<std::ptrdiff_t>(std::lround(share * static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), values.begin() + place, values.end());
  return values[static_cast<std::size_t>(place)];
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

std::vector<double> of_runs(std::span<const exec::RunTime> runs, double exec::RunTime::*what) {
  std::vector<double> values;
  for (const auto& run : runs) values.push_back(run.*what);
  return values;
}

// Both models' turns were at about the same time, so a busy while does not count for one of them only.
std::vector<double> ratios(const Turns& turns, const Turns& first, double exec::RunTime::*what) {
  std::vector<double> all;
  for (std::size_t t = 0; t < turns.size(); ++t) {
    const double base = median(of_runs(first[t], what));
    if (base > 0) all.push_back(median(of_runs(turns[t], what)) / base);
  }
  return all;
}

Latency latency_of(const Turns& turns, const Turns& first) {
  std::vector<exec::RunTime> runs;
  for (const auto& turn : turns) runs.insert(runs.end(), turn.begin(), turn.end());
  const auto wall = of_runs(runs, &exec::RunTime::wall);
  const auto ratio = ratios(turns, first, &exec::RunTime::wall);
  // Of a typical run: a few that were interrupted do not make the others' times doubtful.
  const double typical = median(wall), own = median(of_runs(runs, &exec::RunTime::own));
  return {.runs = runs.size(),
          .min = quantile(wall, 0),
          .median = typical,
          .p90 = quantile(wall, 0.9),
          .cpu = median(of_runs(runs, &exec::RunTime::cpu)),
          .ratio = median(ratio),
          .ratio_low = quantile(ratio, 0.25),
          .ratio_high = quantile(ratio, 0.75),
          .cpu_ratio = median(ratios(turns, first, &exec::RunTime::cpu)),
          .waiting = typical > 0 ? std::max(1 - own / typical, 0.0) : 0};
}

}  // namespace

std::vector<Latency> latencies(const std::vector<Turns>& models) {
  std::vector<Latency> all;
  for (const auto& turns : models) {
    auto latency = latency_of(turns, models.front());
    const double first = all.empty() ? latency.median : all.front().median;
    // Faster in turns and slower over all runs, or the other way round: neither shows that the models differ.
    if ((latency.median - first) * (latency.ratio - 1) < 0) {
      latency.ratio = 1;
      latency.ratio_low = std::min(latency.ratio_low, 1.0);
      latency.ratio_high = std::max(latency.ratio_high, 1.0);
    }
    all.push_back(latency);
  }
  return all;
}

std::string speed_words(double ratio) {
  constexpr double kSame = 0.005;  // what two digits show
  if (!(ratio > 0) || std::abs(ratio - 1) < kSame) return "as fast";
  return ratio < 1 ? fmt::format("{:.2f}x faster", 1 / ratio) : fmt::format("{:.2f}x slower", ratio);
}

std::string busy_note(const std::vector<Latency>& all) {
  double waiting = 0;
  for (const auto& latency : all) {
    if (latency.is_doubtful()) waiting = std::max(waiting, latency.waiting);
  }
  if (waiting == 0) return "";
  return fmt::format(
      "the machine was busy, so latencies tell nothing: {:.0f} % of the time of a run went by in waiting "
      "for a processor",
      100 * waiting);
}

std::vector<std::vector<data::Array>> first_samples(data::SampleSource& source, std::size_t count,
                                                    std::uint64_t most_bytes) {
  std::vector<std::vector<data::Array>> samples;
  source.rewind();
  std::uint64_t all = 0, last = 0;
  while (samples.size() < count && (samples.empty() || last <= most_bytes - std::min(all, most_bytes))) {
    auto sample = source.next();
    if (!sample) break;
    last = bytes_of(sample->inputs);
    all += last;
    samples.push_back(std::move(sample->inputs));
  }
  return samples;
}

}  // namespace detent::run
