#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace detent::cli {

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) == 1) {}

void ProgressLine::update(const std::string& stage, std::uint64_t done, std::uint64_t total) {
  constexpr auto kInterval = std::chrono::milliseconds(100);
  const auto now = Clock::now();
  if (!terminal_ || (drawn_ && now - last_ < kInterval)) return;
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - started_).count();
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string line = fmt::format("{}: {}", stage, done);
  // Files may hold several samples, so the number of files is only a lower bound of the work.
  if (total >= done && total > 0) line += fmt::format(" of {}", total);
  line += fmt::format("  {:.1f}/s", rate);
  if (total > done && rate > 0) line += fmt::format("  {:.0f} s left", static_cast<double>(total - done) / rate);
  fmt::print(stderr, "\r{}\x1b[K", line);
  std::fflush(stderr);
}

void ProgressLine::finish() {
  if (drawn_) fmt::print(stderr, "\r\x1b[K");
  drawn_ = false;
}

}  // namespace detent::cli
