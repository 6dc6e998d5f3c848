#include "cli/output/expected_stages.h"

#include <algorithm>
#include <cmath>

#include "config/presets.h"

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

// What is done with every file that is written, as a share of what calibration takes.
void add_last(std::vector<ExpectedStage>& stages, const QuantizeOptions& options, double calibration) {
  const bool has_samples = options.calibration_data || options.samples != nullptr;
  const auto type = options.config.float_type;
  const bool lowers = type == FloatType::float16 || type == FloatType::bfloat16;
  if (has_samples) stages.push_back({"proof", 0.4 * calibration});
  if (has_samples && (lowers || options.report)) stages.push_back({"compare", 0.6 * calibration});
  if (options.bench) stages.push_back({"latency", 0.2 * calibration});
}

}  // namespace

std::vector<ExpectedStage> expected_stages(const QuantizeOptions& options) {
  std::vector<ExpectedStage> stages;
  if (options.weights_only.enabled || !options.family.empty()) {
    stages = of_blocks(options);
    add_last(stages, options, 3);
    return stages;
  }
  const bool quantizes = config::preset(options.config).quantizes;
  if (quantizes && options.optimize_for != OptimizeFor::size) stages.push_back({"kernels", 0.2});
  if (!options.statistics) stages.push_back({"calibrate", 1});
  if (quantizes && options.accuracy.sensitivity != SensitivityMode::off) {
    const std::vector<ExpectedStage> measured{{"accuracy: recurrent layers", 0.3}, {"accuracy: gates", 0.6},
                                              {"accuracy: as rounded", 0.5},       {"accuracy: equalization", 1.8, 4},
                                              {"accuracy: each value", 1, 2},      {"accuracy: range choice", 0.3},
                                              {"accuracy: fallback", 0.5, 2}};
    stages.insert(stages.end(), measured.begin(), measured.end());
  }
  const bool is_named = tunes(options.finetune.rounding);
  if (quantizes && (is_named || options.finetune.rounding == WeightSolver::automatic)) {
    stages.push_back({"finetune", is_named ? 6.0 : 1.2});  // else by gptq, and only where that is of use
    stages.push_back({"accuracy: weight tuning", 0.4});
  }
  add_last(stages, options, 1);
  return stages;
}

Overall::Overall(const std::vector<ExpectedStage>& stages) {
  for (const auto& stage : stages) stages_.push_back({stage});
}

std::size_t Overall::first_of_turns(std::size_t index) const {
  while (index > 0 && stages_[index].takes_turns) --index;
  return index;
}

void Overall::update(const std::string& name, std::uint64_t done, std::uint64_t total) {
  const auto stage = std::find_if(stages_.begin(), stages_.end(), [&](const auto& s) { return s.name == name; });
  if (stage == stages_.end() || total == 0) return;
  const auto first = first_of_turns(static_cast<std::size_t>(stage - stages_.begin()));
  if (first < current_) return;
  current_ = first;
  stage->began = true;
  if (done < stage->last) ++stage->before;
  stage->last = done;
  const double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  stage->part = std::max(stage->part, (stage->before + part) / std::max(stage->passes, stage->before + 1));
  double worked = 0, left = 0;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const auto& each = stages_[i];
    if (i < current_) {
      if (each.began) worked += each.share;
      continue;
    }
    worked += each.share * each.part;
    left += each.share * (1 - each.part);
  }
  done_ = std::max(done_, worked / (worked + left));
}

}  // namespace detent::cli
