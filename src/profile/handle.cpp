#include "detent/profile.h"
#include "profile/profiler.h"

namespace detent {

Profiler::Scope::Scope(std::unique_ptr<profile::Scope> scope) : scope_(std::move(scope)) {}
Profiler::Scope::Scope(Scope&&) noexcept = default;
Profiler::Scope::~Scope() = default;

Profiler::Profiler(const std::optional<std::filesystem::path>& yaml)
    : impl_(std::make_unique<profile::Profiler>(yaml)) {}
Profiler::~Profiler() = default;

Profiler::Scope Profiler::scope(std::string_view name) {
  return Scope(std::make_unique<profile::Scope>(impl_->scope(name)));
}
void Profiler::checkpoint(std::string_view name) { impl_->checkpoint(name); }
void Profiler::finish() { impl_->finish(); }

std::vector<StageReport> Profiler::stages() const {
  std::vector<StageReport> reports;
  for (const auto& stage : impl_->stages()) reports.push_back({stage.name, stage.seconds, stage.peak_memory});
  return reports;
}
std::uint64_t Profiler::peak_memory() const { return impl_->peak_memory(); }

}  // namespace detent
