// Which resource sets the pace of a stage: its work held against what the machine can do.
#pragma once

#include <string>
#include <string_view>

#include "profile/machine.h"

namespace detent::profile {

/// What a stage did. Amounts that are not known are 0.
struct Work {
  double seconds = 0;
  double flops = 0;
  double memory_bytes = 0;  // to and from main memory
  double disk_bytes = 0;    // read and written
  double bus_bytes = 0;     // between host and device
  double cpu_seconds = 0;   // over all threads
  /// In which some program waited for a processor.
  double pressure_seconds = 0;
};

struct Bottleneck {
  enum class Bound { compute, memory, disk, transfer, waiting, contention };

  Bound bound = Bound::waiting;
  /// Of the bound's peak rate, 0 to 1; for waiting that of the resource that comes nearest to its peak.
  double share = 0;
  /// One sentence. It names options of detent where any helps.
  std::string advice;
};

/// "compute", "memory", "disk", "transfer", "waiting" or "contention".
std::string_view bound_name(Bottleneck::Bound bound) noexcept;

/// Below this share of its peak no resource sets the pace.
constexpr double kLeastShare = 0.25;
/// With this share of the threads' time spent on the processor nobody waits, whatever the work is.
constexpr double kBusyShare = 0.7;

/// With this share of the time under pressure, a stage that kept the processor less busy waited for other programs.
constexpr double kPressureShare = 0.3;

/// The names by which find_bottleneck() knows the stages "Calibration" and "Fast Finetune" of a run on a GPU.
inline constexpr std::string_view kCalibrationOnGpu = "Calibration on a GPU";
inline constexpr std::string_view kTuningOnGpu = "Fast Finetune on a GPU";

/// Each resource needs at least its amount divided by its peak; the one that needs the largest part of the stage's time
/// is the bound. When none needs a quarter of it, the bound is compute if the processor was busy all the same (with
/// other work than arithmetic on float32), contention if other programs had it, else waiting. `stage` is a name as in
/// the profile; it only chooses the advice.
Bottleneck find_bottleneck(const Work& work, const MachinePeaks& peaks, std::string_view stage);

}  // namespace detent::profile
