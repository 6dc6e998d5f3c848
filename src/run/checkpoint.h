// How far a calibration has come, put down so that a later process can go on.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

#include "calibrate/statistics.h"

namespace detent::run {

struct Progressed {
  std::vector<int> cuts;
  std::size_t segment = 0;             // the one at work
  std::size_t done = 0;                // samples that are through it
  std::size_t samples = 0;             // in all; 0: not known yet
  calibration::Statistics statistics;  // of all that is done; `data` and `samples` of what was read
};

/// Files in a run's directory. Each save replaces the one before, whole or not at all.
class Checkpoints {
 public:
  /// `seconds` between saves; 0: due() at every sample.
  Checkpoints(std::filesystem::path directory, double seconds);

  /// What an earlier process put down last. Throws bad_input when it is damaged.
  std::optional<Progressed> load() const;
  void save(const Progressed& progressed);
  /// When the next save should be. Saving is kept to a small share of the time.
  std::chrono::steady_clock::time_point due() const noexcept { return due_; }

 private:
  std::filesystem::path directory_;
  double seconds_;
  std::size_t number_ = 0;  // of the last save
  std::chrono::steady_clock::time_point due_;
};

}  // namespace detent::run
