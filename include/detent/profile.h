// A profile in the caller's hands: scopes and checkpoints of the caller's own, in one file with those of detent's
// stages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "detent/error.h"
#include "detent/stage_report.h"

namespace detent {

namespace profile {
class Profiler;
class Scope;
}  // namespace profile

/// Measures from construction to finish(): time, memory, disk traffic and GPU memory, sampled all the while. Given to
/// QuantizeOptions or CalibrateOptions, it takes up the stages of that run, inside whatever scopes are open. It
/// outlives such runs and may serve several. All members may be called from any thread.
class Profiler {
 public:
  /// An open scope; it ends when the object goes. Must not outlive its profiler.
  class [[nodiscard]] Scope {
   public:
    Scope(Scope&&) noexcept;
    Scope& operator=(Scope&&) = delete;
    ~Scope();

   private:
    friend class Profiler;
    explicit Scope(std::unique_ptr<profile::Scope> scope);
    std::unique_ptr<profile::Scope> scope_;
  };

  /// With a path, every checkpoint is written to that YAML file as it happens (docs/profile.md); a file there must be
  /// empty or a profile. Throws Error (usage) when it cannot be created.
  explicit Profiler(const std::optional<std::filesystem::path>& yaml = std::nullopt);
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  ~Profiler();  // finishes, and keeps quiet about a file that could not be completed

  /// Writes "<name> Start" now and "<name> End" when the scope goes. Scopes may nest and overlap.
  Scope scope(std::string_view name);
  void checkpoint(std::string_view name);

  /// Writes the end and the summary; afterwards nothing is measured any more. Throws what kept the file from being
  /// complete, the first time.
  void finish();

  /// All scopes so far, those of detent's runs among them, in the order of opening.
  std::vector<StageReport> stages() const;
  /// Bytes: the process's own high-water mark, or the largest sum with its children where that is more.
  std::uint64_t peak_memory() const;

  /// For detent itself.
  profile::Profiler& impl() noexcept { return *impl_; }

 private:
  std::unique_ptr<profile::Profiler> impl_;
};

}  // namespace detent
