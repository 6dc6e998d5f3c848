// Progress of a long run, on the terminal or in a log.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "detent/progress.h"
#include "detent/quantize.h"

namespace detent::cli {

/// A stage that a run is expected to go through, under the name that Progress gives it.
struct ExpectedStage {
  std::string name;
  double share = 1;          // of the run's time, to a common factor
  int passes = 1;            // so often it starts over, as a rule
  bool takes_turns = false;  // with the stage before it
  std::uint64_t work = 0;    // that the share is for, where it grows with what is told as the total
};

/// What comes before the first stage that is told of: it is done by then.
inline constexpr const char* kOpening = "";

/// The stages of quantize with these options, with shares as they typically are.
std::vector<ExpectedStage> expected_stages(const QuantizeOptions& options);

/// The share of a run that is done, which never falls. Stages that a run leaves out count for nothing once a later one
/// has begun.
class Overall {
 public:
  Overall() = default;
  explicit Overall(const std::vector<ExpectedStage>& stages);

  /// What Progress tells; a stage that is not expected changes nothing.
  void update(const std::string& stage, std::uint64_t done, std::uint64_t total);
  /// A stage that has not begun will take so many times its share; 0: it is left out.
  void expect(const std::string& stage, double times);
  bool is_known() const noexcept { return done_ > 0; }
  double done() const noexcept { return done_; }  // 0 to 1

 private:
  struct Stage : ExpectedStage {
    double times = 1;  // its share
    bool began = false;
    double part = 0;         // done
    std::uint64_t last = 0;  // done in the pass under way
    int before = 0;          // passes that it has behind it
  };

  Stage* find(const std::string& name);
  std::size_t first_of_turns(std::size_t index) const;

  std::vector<Stage> stages_;
  std::size_t current_ = 0;  // the first stage of those under way
  double done_ = 0;
};

/// On a terminal one line that is rewritten in place at most every 100 ms and cleared at the end. Elsewhere plain lines
/// for runs that take long: none in the first 10 s, then one at most every 10 s and one at the end. A line tells the
/// stage, the work done, its rate, the time left, a detail if one was given, and the process's memory now and at its
/// peak. With expect() it also tells the share of the whole run that is done, and the time left is that of the run: an
/// estimate, from how long the stages of a run take as a rule.
///
/// Calls come from one thread at a time.
class ProgressLine {
 public:
  using Clock = std::chrono::steady_clock;

  /// On stderr.
  ProgressLine();
  ProgressLine(std::FILE* out, bool terminal, Clock::time_point start = Clock::now());
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { finish(); }

  /// What the memory is told beside; 0: nothing.
  void set_memory_budget(std::uint64_t bytes) { memory_budget_ = bytes; }

  /// The stages of the run, for its share that is done.
  void expect(const std::vector<ExpectedStage>& stages) { overall_ = Overall(stages); }
  /// One of them takes so many times what was expected; 0: it is left out.
  void expect(const std::string& stage, double times) { overall_.expect(stage, times); }

  /// Something to tell in the lines of the stage that is under way, or of the first.
  void set_detail(std::string text) { detail_ = std::move(text); }

  /// `total` 0: not known. Files may hold several samples, so it is a lower bound of the work.
  void update(const std::string& stage, std::uint64_t done, std::uint64_t total, Clock::time_point now = Clock::now());
  /// Clears the line, or writes the last plain one. Nothing more comes after it until the next update.
  void finish(Clock::time_point now = Clock::now());

 private:
  std::string time_left(Clock::time_point now, double rate) const;
  std::string text(Clock::time_point now) const;
  void write(const std::string& text);
  void print_plain(Clock::time_point now);

  std::FILE* out_;
  bool terminal_;
  std::uint64_t memory_budget_ = 0;
  Clock::time_point started_;
  bool shown_ = false;      // a line on the terminal to clear, or a plain line before
  bool pending_ = false;    // what is below has not been shown
  Clock::time_point last_;  // when a line was shown

  Overall overall_;
  std::string stage_;
  std::string detail_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  Clock::time_point stage_started_;  // with its first update, which came when `stage_done_` was done
  std::uint64_t stage_done_ = 0;
};

/// What tells `line` of progress; nothing if `quiet`. The line must outlive it.
Progress progress_to(ProgressLine& line, bool quiet);

/// What `call` makes of the options, with a line of progress while it does.
template <class Call>
auto with_progress(Options& options, bool quiet, const Call& call) {
  ProgressLine line;
  options.progress = progress_to(line, quiet);
  auto result = call(options);
  line.finish();
  return result;
}

}  // namespace detent::cli
