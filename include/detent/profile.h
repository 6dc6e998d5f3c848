// A profiler that the caller creates, for scopes and checkpoints of the caller's own in one file with those of detent's
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

/// Measures time, memory, disk traffic and GPU memory from construction to finish(), by sampling. Passed in
/// QuantizeOptions or CalibrateOptions, it records the stages of that run inside the scopes that are open. It must
/// outlive these runs and may serve several. All members may be called from any thread.
class Profiler {
 public:
  /// An open scope; it ends when the object is destroyed. Must not outlive its profiler.
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

  /// With a path, every checkpoint is written to that YAML file as it happens (docs/profile.md); an existing file must
  /// be empty or a profile. Throws Error (usage) if the file cannot be created.
  explicit Profiler(const std::optional<std::filesystem::path>& yaml = std::nullopt);
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  ~Profiler();  // calls finish() and ignores errors

  /// Writes "<name> Start" now and "<name> End" when the scope ends. Scopes may nest and overlap.
  Scope scope(std::string_view name);
  void checkpoint(std::string_view name);

  /// Writes "End" and the summary, and stops measuring. The first call throws the error that kept the file from being
  /// complete, if any.
  void finish();

  /// All scopes so far, including those of detent's runs, in the order in which they were opened.
  std::vector<StageReport> stages() const;
  /// In bytes: the process's own high-water mark, or the largest sum with its children if that is more.
  std::uint64_t peak_memory() const;

  /// Internal.
  profile::Profiler& impl() noexcept { return *impl_; }

 private:
  std::unique_ptr<profile::Profiler> impl_;
};

}  // namespace detent
