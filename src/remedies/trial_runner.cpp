#include "remedies/trial_runner.h"

#include "base/parallel.h"
#include "base/paths.h"
#include "remedies/stage_memory.h"
#include "remedies/trial_model.h"

namespace detent::remedies {

std::vector<TrialResult> TrialRunner::run(const quantization::Placement& placement,
                                          const quantization::AssignedValues& values, std::span<const Trial> trials,
                                          TrialSamples samples, decltype(TrialOptions::watch) watch,
                                          References* references) {
  const auto model = make_trial_model(prepared_.model, prepared_.types, placement, values);
  run::Context context = context_;
  context.directory /= "trials";
  paths::remove(context.directory);  // of an interrupted run, whose trials may have been others
  paths::make_folder(context.directory);
  plan_sweep(placement, context);
  auto results = run_trials(context, model, trials, source_,
                            {.samples = samples,
                             .cuts = model.map_cuts(sweep_->cuts),
                             .spool = sweep_->spool.get(),
                             .references = references,
                             .reference_bytes = share_of_budget(context.resources, kReferenceBytes),
                             .watch = std::move(watch)});
  sweep_->spool.reset();
  paths::remove(context.directory);
  return results;
}

void TrialRunner::plan_sweep(const quantization::Placement& placement, const run::Context& context) {
  if (!sweep_) {
    const planning::Circumstances circumstances{.observed = placement.to_observe().size(),
                                                .histograms = false,
                                                .threads = thread_count(context.threads),
                                                .beside = trial_memory(prepared_.model, placement),
                                                .weights_stay = true};
    sweep_ = run::set_up_sweep(context, prepared_, placement, source_, circumstances);
  } else if (!sweep_->cuts.empty()) {
    sweep_->spool = run::make_spool(context, sweep_->plan);
  }
}

}  // namespace detent::remedies
