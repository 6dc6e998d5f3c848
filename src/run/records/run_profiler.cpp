#include "run/records/run_profiler.h"

#include "base/error.h"

namespace detent::run {

RunProfiler::RunProfiler(Profiler* callers, const std::optional<std::filesystem::path>& yaml)
    : profiler_(callers == nullptr ? nullptr : &callers->impl()) {
  if (profiler_ != nullptr && yaml)
    throw usage_error("a run takes a path for its profile or a profiler, not both", "give the path to the profiler");
  if (profiler_ == nullptr) profiler_ = &own_.emplace(yaml);
  first_ = profiler_->stages().size();
  profiler_->device().begin_run();
}

void RunProfiler::finish() {
  if (own_) own_->finish();
}

std::vector<profile::StageTime> RunProfiler::stages() const {
  auto stages = profiler_->stages();
  stages.erase(stages.begin(), stages.begin() + static_cast<std::ptrdiff_t>(first_));
  return stages;
}

std::vector<StageReport> RunProfiler::stage_reports() const {
  std::vector<StageReport> reports;
  for (const auto& stage : stages()) reports.push_back({stage.name, stage.seconds, stage.peak_memory});
  return reports;
}

}  // namespace detent::run
