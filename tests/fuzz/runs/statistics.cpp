// Statistics files: what is read is consistent, writes back as the same bytes, merges, and every method finds a range.
#include <array>

#include "calibration/methods.h"
#include "calibration/statistics_file.h"
#include "fuzz/fuzz.h"
#include "fuzz/kinds.h"
#include "fuzz/runs/sealed.h"

namespace detent::fuzz {
namespace {

using calibration::Statistics;
using calibration::Summary;

calibration::Grid grid_of(const calibration::Range& range) {
  const double step = std::max(1e-30, (static_cast<double>(range.max) - range.min) / 255);
  return {step, range.min, range.max};
}

void find_ranges(const std::string& name, const Summary& summary) {
  if (!summary.has_values()) return;  // nobody asks for its range
  const QuantConfig format = preset_config("plain");
  MethodConfig config;
  const calibration::Quantizer quantizer = grid_of;
  for (const auto* method : calibration::all_methods()) {
    config.method = method->id;
    try_to([&] {
      const auto range = calibration::find_range({name, summary, config, format, quantizer});
      require(range.min <= range.max, "a range is not empty");
    });
  }
  calibration::minmax_range(summary, true);
  if (!summary.histogram.empty()) calibration::best_power_of_two(summary, 8);
}

void check_others(const Statistics& statistics) {
  std::array<Statistics, 4> others{statistics, statistics, statistics, statistics};
  others[0].model.low ^= 1;
  others[1].has_histograms = !statistics.has_histograms;
  others[2].has_votes = !statistics.has_votes;
  others[3].tensors["\n"];
  if (statistics.tensors.contains("\n")) return;
  for (const Statistics& other : others)
    require(!try_to([&] { calibration::check_mergeable(statistics, other, "'z'"); }), "other statistics are refused");
}

void use(Bytes file) {
  try_to([&] {
    const Statistics statistics = calibration::decode(file, "'x'");
    const std::string once = calibration::encode(statistics);
    Statistics again;
    require(try_to([&] { again = calibration::decode(as_byte_span(once), "'y'"); }), "what was written can be read");
    require(calibration::encode(again) == once, "statistics read back as they were written");
    for (const auto& [name, summary] : statistics.tensors) find_ranges(name, summary);
    check_others(statistics);
    calibration::check_mergeable(statistics, again, "'y'");
    again.merge(statistics);
    calibration::encode(again);
  });
}

void run(Bytes input) {
  use(input);
  const std::string file = sealed(as_text(input));
  use(as_byte_span(file));
}

const Registered statistics{{"statistics", run, {&kStatistics}}};

}  // namespace
}  // namespace detent::fuzz
