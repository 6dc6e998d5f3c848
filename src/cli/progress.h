// Progress on the terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace detent::cli {

/// One line on stderr that is rewritten in place; on anything but a terminal, nothing.
class ProgressLine {
 public:
  ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { finish(); }

  /// `total` 0: not known.
  void update(const std::string& stage, std::uint64_t done, std::uint64_t total);
  /// Clears the line.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point started_ = Clock::now();
  Clock::time_point last_;
};

}  // namespace detent::cli
