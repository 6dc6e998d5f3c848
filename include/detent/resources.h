// What a run may take. None of it changes the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace detent {

namespace shim {
class Ranks;
}

/// Where tensors are kept that one segment of the model hands to a later one: all in memory (0), in memory as far as
/// the budget allows (1), all on disk (2).
enum class MemoryLevel { memory = 0, budget = 1, disk = 2 };

enum class SpoolAccess { automatic, buffered, direct, uring };

struct Resources {
  /// Resident memory, mapped weights included; unset: 80 % of what the cgroup or the machine has free.
  std::optional<std::uint64_t> memory_budget;
  /// Working files; unset: 90 % of the free space.
  std::optional<std::uint64_t> disk_budget;
  /// Where working files go; unset: $TMPDIR or /tmp.
  std::optional<std::filesystem::path> work_dir;
  MemoryLevel memory_level = MemoryLevel::budget;
  /// At least so many segments, where the model can be cut; 0: as few as the budget allows.
  std::size_t segments = 0;
  SpoolAccess spool_access = SpoolAccess::automatic;
  /// Continue an interrupted run for this output; if this one is interrupted, keep what is done.
  bool resume = false;
  /// How often progress is saved, so that the run can be resumed; 0: after every sample.
  double checkpoint_seconds = 10;
  /// Seconds; then the run ends as if the user had stopped it, with an Error of kind resource.
  std::optional<double> time_limit;
  /// Seconds that the model may take for one sample; then the run ends likewise.
  std::optional<double> sample_time_limit;
  /// The processes that an MPI launcher started together, which take shares of the work; null: quantize() joins them.
  shim::Ranks* ranks = nullptr;
};

}  // namespace detent
