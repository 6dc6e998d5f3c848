// Where the stages of a run are recorded: in a profile of its own, or in one that the caller holds.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "detent/profile.h"
#include "detent/stage_report.h"
#include "profile/profiler.h"

namespace detent::run {

class RunProfiler {
 public:
  /// Throws usage when both are given: the caller's profile has its own file.
  RunProfiler(Profiler* callers, const std::optional<std::filesystem::path>& yaml);

  profile::Profiler& profiler() noexcept { return *profiler_; }
  const profile::Profiler& profiler() const noexcept { return *profiler_; }

  /// Ends the run's own profile, and throws when its file could not be written. A caller's profile continues.
  void finish();

  /// Of this run only, also in a caller's profile.
  std::vector<profile::StageTime> stages() const;
  std::vector<StageReport> stage_reports() const;

 private:
  std::optional<profile::Profiler> own_;
  profile::Profiler* profiler_;
  std::size_t first_;  // stage of this run
};

}  // namespace detent::run
