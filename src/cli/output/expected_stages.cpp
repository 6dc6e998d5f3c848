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

struct LastShares {
  double proof, compare, latency;
};

// What is done with every file that is written.
void add_last(std::vector<ExpectedStage>& stages, const QuantizeOptions& options, const LastShares& shares) {
  const bool has_samples = options.calibration_data || options.samples != nullptr;
  const auto type = options.config.float_type;
  const bool lowers = type == FloatType::float16 || type == FloatType::bfloat16;
  if (has_samples) stages.push_back({"proof", shares.proof});
  if (has_samples && (lowers || options.report)) stages.push_back({"compare", shares.compare});
  if (options.bench) stages.push_back({"latency", shares.latency});
}

}  // namespace

std::vector<ExpectedStage> expected_stages(const QuantizeOptions& options) {
  std::vector<ExpectedStage> stages;
  if (options.weights_only.enabled || !options.family.empty()) {
    stages = of_blocks(options);
    add_last(stages, options, {1.2, 1.8, 0.6});
    return stages;
  }
  // As processor time of runs with 16 samples, of which calibration takes a tenth where integers are measured.
  constexpr std::uint64_t kSamples = 16;
  const bool quantizes = config::preset(options.config).quantizes;
  stages.push_back({kOpening, 0.8});
  if (quantizes && options.optimize_for != OptimizeFor::size) stages.push_back({"kernels", 0.2});
  if (!options.statistics) stages.push_back({.name = "calibrate", .share = 1, .work = kSamples});
  if (quantizes && options.accuracy.sensitivity != SensitivityMode::off) {
    const std::vector<ExpectedStage> measured{{"accuracy: recurrent layers", 0.3}, {"accuracy: gates", 2.2, 4},
                                              {"accuracy: as rounded", 0.8},       {"accuracy: equalization", 2.3, 4},
                                              {"accuracy: each value", 1.4, 2},    {"accuracy: range choice", 0.4},
                                              {"accuracy: fallback", 0.9, 2}};
    stages.insert(stages.end(), measured.begin(), measured.end());
  }
  const bool is_named = tunes(options.finetune.rounding);
  if (quantizes && (is_named || options.finetune.rounding == WeightSolver::automatic)) {
    stages.push_back({"finetune", is_named ? 17.0 : 5.2});  // else by gptq, and only where that is of use
    stages.push_back({"accuracy: weight tuning", 1.1});
  }
  add_last(stages, options, {0.9, 0.6, 1.4});
  return stages;
}

Overall::Overall(const std::vector<ExpectedStage>& stages) {
  for (const auto& stage : stages) stages_.push_back({stage});
}

Overall::Stage* Overall::find(const std::string& name) {
  const auto stage = std::find_if(stages_.begin(), stages_.end(), [&](const auto& s) { return s.name == name; });
  return stage == stages_.end() ? nullptr : &*stage;
}

void Overall::expect(const std::string& name, double times) {
  auto* const stage = find(name);
  if (stage != nullptr && !stage->began) stage->times = times;
}

std::size_t Overall::first_of_turns(std::size_t index) const {
  while (index > 0 && stages_[index].takes_turns) --index;
  return index;
}

void Overall::update(const std::string& name, std::uint64_t done, std::uint64_t total) {
  auto* const stage = find(name);
  if (stage == nullptr || total == 0) return;
  const auto first = first_of_turns(static_cast<std::size_t>(stage - stages_.data()));
  if (first < current_) return;
  current_ = first;
  if (!stage->began && stage->work > 0) stage->times = static_cast<double>(total) / static_cast<double>(stage->work);
  stage->began = true;
  if (done < stage->last) ++stage->before;
  stage->last = done;
  const double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  stage->part = std::max(stage->part, (stage->before + part) / std::max(stage->passes, stage->before + 1));
  double worked = 0, left = 0;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const auto& each = stages_[i];
    const double share = each.share * each.times;
    if (i < current_) {
      if (each.began || each.name == kOpening) worked += share;
      continue;
    }
    worked += share * each.part;
    left += share * (1 - each.part);
  }
  done_ = std::max(done_, worked / (worked + left));
}

}  // namespace detent::cli
