#include "cli/expected_stages.h"

#include <algorithm>
#include <cmath>

namespace detent::cli {
namespace {

// With samples, most of the time goes into the sums of the solver's problems.
std::vector<ExpectedStage> of_blocks(const QuantizeOptions& options) {
  std::vector<ExpectedStage> stages;
  const bool has_samples = options.calibration_data || options.samples != nullptr;
  if (options.weights_only.max_size) stages.push_back({"errors of bits", 2});
  if (has_samples) {
    stages.push_back({"samples", 3});
    stages.push_back({"solve", 3});
  }
  stages.push_back({"weights (MiB)", 2});
  return stages;
}

}  // namespace

std::vector<ExpectedStage> expected_stages(const QuantizeOptions& options) {
  if (options.weights_only.enabled || !options.family.empty()) return of_blocks(options);
  std::vector<ExpectedStage> stages;
  if (options.optimize_for != OptimizeFor::size) stages.push_back({"kernels", 1});
  if (!options.statistics) stages.push_back({"calibrate", 2});
  if (options.accuracy.sensitivity != SensitivityMode::off) stages.push_back({"accuracy", 6, true});
  if (tunes(options.finetune.rounding)) stages.push_back({"finetune", 10});
  return stages;
}

Overall::Overall(std::vector<ExpectedStage> stages) : stages_(std::move(stages)) {
  for (const auto& stage : stages_) all_ += stage.share;
}

void Overall::update(const std::string& stage, std::uint64_t done, std::uint64_t total) {
  const auto found = std::find_if(stages_.begin(), stages_.end(), [&](const auto& s) { return s.name == stage; });
  if (found == stages_.end() || total == 0) return;
  const auto index = static_cast<std::size_t>(found - stages_.begin());
  if (index < current_) return;
  if (index > current_) passes_ = 0;
  if (index == current_ && done < last_) ++passes_;
  current_ = index;
  last_ = done;
  double before = 0;
  for (std::size_t i = 0; i < index; ++i) before += stages_[i].share;
  double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  if (found->repeats) part = 1 - std::exp2(-(passes_ + part));
  done_ = std::max(done_, (before + found->share * part) / all_);
}

}  // namespace detent::cli
