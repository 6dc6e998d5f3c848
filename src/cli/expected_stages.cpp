#include "cli/expected_stages.h"

#include <algorithm>
#include <cmath>

namespace detent::cli {
namespace {

// With samples, most of the time goes into the solver, above all where weights are rounded one after another. A large
// model goes through samples and solver layer by layer.
std::vector<ExpectedStage> of_blocks(const QuantizeOptions& options) {
  std::vector<ExpectedStage> stages;
  const bool has_samples = options.calibration_data || options.samples != nullptr;
  if (options.weights_only.max_size) stages.push_back({"errors of bits", 2});
  if (has_samples) {
    const auto method = options.weights_only.method;
    const bool one_by_one = method == WeightMethod::gptq || method == WeightMethod::automatic;
    stages.push_back({"samples", 3});
    stages.push_back({.name = "solve", .share = one_by_one ? 15.0 : 3.0, .takes_turns = true});
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

Overall::Overall(std::vector<ExpectedStage> stages) : stages_(std::move(stages)), parts_(stages_.size()) {
  for (const auto& stage : stages_) all_ += stage.share;
}

std::size_t Overall::first_of_turns(std::size_t index) const {
  while (index > 0 && stages_[index].takes_turns) --index;
  return index;
}

void Overall::update(const std::string& stage, std::uint64_t done, std::uint64_t total) {
  const auto found = std::find_if(stages_.begin(), stages_.end(), [&](const auto& s) { return s.name == stage; });
  if (found == stages_.end() || total == 0) return;
  const auto index = static_cast<std::size_t>(found - stages_.begin());
  const auto first = first_of_turns(index);
  if (first < current_) return;
  if (first > current_) {
    passes_ = 0;
    last_ = 0;
    std::fill_n(parts_.begin(), first, 1.0);
  }
  current_ = first;
  double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  if (found->repeats) {
    if (done < last_) ++passes_;
    last_ = done;
    part = 1 - std::exp2(-(passes_ + part));
  }
  parts_[index] = std::max(parts_[index], part);
  double all = 0;
  for (std::size_t i = 0; i < stages_.size(); ++i) all += stages_[i].share * parts_[i];
  done_ = std::max(done_, all / all_);
}

}  // namespace detent::cli
