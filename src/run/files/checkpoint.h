// The progress of a calibration, saved so that a later process can continue it.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

#include "calibration/statistics.h"

namespace detent::run {

struct CalibrationProgress {
  std::vector<int> cuts;
  std::size_t segment = 0;             // the current one
  std::size_t done = 0;                // samples that have passed it
  std::size_t samples = 0;             // in total; 0: not known yet
  calibration::Statistics statistics;  // of the samples that are done; `data` and `samples` of those that were read
};

/// Files in a run's directory. Each save replaces the previous one atomically.
class Checkpoints {
 public:
  /// `seconds` between saves; 0: after every sample. `shares`: into how many the samples are divided, of which this
  /// process has one.
  Checkpoints(std::filesystem::path directory, double seconds, int shares = 1);

  /// The last save of an earlier process, unless that had another share. Throws bad_input when it is damaged.
  std::optional<CalibrationProgress> load() const;
  void save(const CalibrationProgress& progressed);
  /// When the next save is due. Saving takes at most about 1 % of the time.
  std::chrono::steady_clock::time_point due() const noexcept { return due_; }

 private:
  std::filesystem::path directory_;
  double seconds_;
  int shares_;
  std::size_t number_ = 0;  // of the last save
  std::chrono::steady_clock::time_point due_;
};

}  // namespace detent::run
