#include "calibration/run_summary.h"

#include <fmt/format.h>

#include "calibration/methods.h"

namespace detent::calibration {

Summary run_summary(std::uint64_t count, const KeyRange& extremes, std::uint64_t nan_count, std::uint64_t inf_count) {
  Summary run;
  run.count = count;
  run.extremes = extremes;
  run.nan_count = nan_count;
  run.inf_count = inf_count;
  if (!run.has_values()) return run;
  run.runs = 1;
  run.sum_of_minima.add(run.extremes.lowest());
  run.sum_of_maxima.add(run.extremes.highest());
  return run;
}

void check_finite(const Summary& run, const Observed& observed, const std::string& sample,
                  const ObserverOptions& options) {
  if (options.allow_nonfinite || run.nan_count + run.inf_count == 0) return;
  throw bad_input(fmt::format("tensor '{}' ({}) holds {} NaN and {} infinite values for sample '{}'", observed.value,
                              observed.made_by, run.nan_count, run.inf_count, sample),
                  "correct the sample or the model, or leave such values out with --set allow-nonfinite");
}

void count_best_scales(Summary& run) {
  if (!run.has_values() || run.all_zero()) return;
  run.votes_8_bit[best_power_of_two(run, 8)] = 1;
  run.votes_16_bit[best_power_of_two(run, 16)] = 1;
}

}  // namespace detent::calibration
