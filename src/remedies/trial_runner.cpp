#include "remedies/trial_runner.h"

#include "accuracy/trial_model.h"
#include "base/parallel.h"

namespace detent::remedies {

std::vector<TrialResult> TrialRunner::run(const quantization::Placement& placement,
                                          const quantization::AssignedValues& values,
                                          std::span<const accuracy::Trial> trials, TrialSamples samples,
                                          decltype(TrialOptions::watch) watch) {
  const auto model = accuracy::make_trial_model(prepared_.model, prepared_.types, placement, values);
  const auto directory = options_.directory / "trials";
  std::filesystem::remove_all(directory);  // an interrupted run's, whose trials may have been others
  std::filesystem::create_directory(directory);
  plan_sweep(placement, directory);
  auto results = run_trials(model, trials, runtime_, source_,
                            {.samples = samples,
                             .threads = options_.threads,
                             .cuts = model.map_cuts(sweep_->cuts),
                             .spool = sweep_->spool.get(),
                             .watch = std::move(watch),
                             .progress = options_.progress,
                             .stop = options_.stop});
  sweep_->spool.reset();
  std::filesystem::remove_all(directory);
  return results;
}

void TrialRunner::plan_sweep(const quantization::Placement& placement, const std::filesystem::path& directory) {
  if (!sweep_) {
    const planning::Circumstances circumstances{placement.to_observe().size(), false, thread_count(options_.threads), 1,
                                                0};
    sweep_ = run::set_up_sweep(prepared_, placement, runtime_, source_, circumstances, options_.resources, directory,
                               nullptr);
  } else if (!sweep_->cuts.empty()) {
    sweep_->spool = run::make_spool(options_.resources, sweep_->plan ? sweep_->plan->spool_memory : 0, directory);
  }
}

}  // namespace detent::remedies
