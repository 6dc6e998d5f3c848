#include "cli/output/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/text.h"
#include "config/presets.h"
#include "profile/meters.h"

namespace detent::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kRedraw = 100ms;
constexpr auto kPlainPeriod = 10s;

double seconds(ProgressLine::Clock::duration time) { return std::chrono::duration<double>(time).count(); }

/// "8 s", "3:07", "1:02:45".
std::string time_text(double time) {
  const auto whole = static_cast<std::uint64_t>(std::llround(std::clamp(time, 0.0, 1e9)));
  if (whole < 100) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string memory_text(std::uint64_t budget) {
  const std::uint64_t now = profile::memory_now().resident;
  const auto text =
      fmt::format("memory {}, peak {}", format_size(now), format_size(std::max(now, profile::peak_resident())));
  return budget == 0 ? text : fmt::format("{} of {}", text, format_size(budget));
}

/// Without what would move the cursor, and short enough that the line is not broken in two.
std::string one_line(std::string_view text, std::size_t columns) {
  std::string line;
  std::size_t used = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool begins = (byte & 0xC0U) != 0x80;  // a character of several bytes takes one column
    if (begins && ++used > columns) break;
    line += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  return line;
}

std::size_t columns_of(std::FILE* out) {
  winsize size{};
  const bool known = ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col - 1U : 79U;  // a full line would wrap
}

}  // namespace

ProgressLine::ProgressLine() : ProgressLine(stderr, ::isatty(STDERR_FILENO) == 1) {}

ProgressLine::ProgressLine(std::FILE* out, bool terminal, Clock::time_point start)
    : out_(out), terminal_(terminal), started_(start), last_(start), stage_started_(start) {}

void ProgressLine::update(const std::string& stage, std::uint64_t done, std::uint64_t total, Clock::time_point now) {
  if (stage != stage_ || done < stage_done_) {
    if (stage != stage_ && !stage_.empty()) detail_.clear();
    stage_ = stage;
    stage_started_ = now;
    stage_done_ = done;
  }
  done_ = done;
  total_ = total;
  overall_.update(stage, done, total);
  pending_ = true;
  if (terminal_) {
    if (shown_ && now - last_ < kRedraw) return;
    write(fmt::format("\r{}\x1b[K", one_line(text(now), columns_of(out_))));
    last_ = now;
    shown_ = true;
    pending_ = false;
  } else if (now - last_ >= kPlainPeriod) {
    print_plain(now);
  }
}

void ProgressLine::finish(Clock::time_point now) {
  if (shown_ && terminal_) {
    write("\r\x1b[K");
  } else if (shown_ && pending_) {
    print_plain(now);
  }
  shown_ = pending_ = false;
  last_ = started_ = now;
}

void ProgressLine::print_plain(Clock::time_point now) {
  write(one_line(text(now), std::string::npos) + "\n");
  last_ = now;
  shown_ = true;
  pending_ = false;
}

// That nobody reads it is no failure of the run.
void ProgressLine::write(const std::string& text) {
  std::fputs(text.c_str(), out_);
  std::fflush(out_);
}

// Of the run, where its stages are known; of the stage otherwise.
std::string ProgressLine::time_left(Clock::time_point now, double rate) const {
  if (!overall_.is_known()) {
    if (total_ <= done_ || rate <= 0) return {};
    return fmt::format("  {} left", time_text(static_cast<double>(total_ - done_) / rate));
  }
  constexpr double kTooEarly = 0.02, kTooLate = 0.99;  // shares done at which no time can be told
  const double done = overall_.done();
  auto text = fmt::format("  {:.0f} % of the run", std::floor(100 * done));
  if (done >= kTooEarly && done <= kTooLate)
    text += fmt::format(", {} left", time_text(seconds(now - started_) * (1 - done) / done));
  return text;
}

std::string ProgressLine::text(Clock::time_point now) const {
  std::string line = fmt::format("{}: {}", stage_, done_);
  if (total_ >= done_ && total_ > 0) line += fmt::format(" of {}", total_);
  const double time = seconds(now - stage_started_);
  // What was done when the stage was first heard of took an unknown time.
  const double rate = time > 0 ? static_cast<double>(done_ - stage_done_) / time : 0;
  if (rate > 0) line += fmt::format("  {:.{}f}/s", rate, rate < 10 ? 2 : 1);
  line += time_left(now, rate);
  if (!detail_.empty()) line += "  " + detail_;
  return line + "  " + memory_text(memory_budget_);
}

Progress progress_to(ProgressLine& line, bool quiet) {
  if (quiet) return {};
  return
      [&line](const std::string& stage, std::uint64_t done, std::uint64_t total) { line.update(stage, done, total); };
}

namespace {

// With samples, most of the time goes into the solver, above all where weights are rounded one after another. A large
// model goes through samples and solver layer by layer.
std::vector<ExpectedStage> stages_of_blocks(const QuantizeOptions& options) {
  std::vector<ExpectedStage> stages;
  const bool has_samples = options.calibration_data || options.samples != nullptr;
  if (options.weights_only.max_size) stages.push_back({"errors of bits", 2});
  if (has_samples) {
    const auto method = options.weights_only.method;
    const bool one_by_one = method == WeightMethod::gptq || method == WeightMethod::automatic;
    stages.push_back({"samples", 3});
    stages.push_back({.name = "solve", .share = one_by_one ? 15.0 : 3.0, .takes_turns = true});
  }
  stages.push_back({"weights (MiB)", 2});
  return stages;
}

struct LastShares {
  double proof, compare, latency;
};

// What is done with every file that is written.
void add_last(std::vector<ExpectedStage>& stages, const QuantizeOptions& options, const LastShares& shares) {
  const bool has_samples = options.calibration_data || options.samples != nullptr;
  const auto type = options.config.float_type;
  const bool lowers = type == FloatType::float16 || type == FloatType::bfloat16;
  if (has_samples) stages.push_back({"proof", shares.proof});
  if (has_samples && (lowers || options.report)) stages.push_back({"compare", shares.compare});
  if (options.bench) stages.push_back({"latency", shares.latency});
}

}  // namespace

std::vector<ExpectedStage> expected_stages(const QuantizeOptions& options) {
  std::vector<ExpectedStage> stages;
  if (options.weights_only.enabled || !options.family.empty()) {
    stages = stages_of_blocks(options);
    add_last(stages, options, {1.2, 1.8, 0.6});
    return stages;
  }
  // As processor time of runs with 16 samples, of which calibration takes a tenth where integers are measured.
  constexpr std::uint64_t kSamples = 16;
  const bool quantizes = config::preset(options.config).quantizes;
  stages.push_back({kOpening, 0.8});
  if (quantizes && options.optimize_for != OptimizeFor::size) stages.push_back({"kernels", 0.2});
  if (!options.statistics) stages.push_back({.name = "calibrate", .share = 1, .work = kSamples});
  if (quantizes && options.accuracy.sensitivity != SensitivityMode::off) {
    const std::vector<ExpectedStage> measured{
        {"accuracy: recurrent layers", 0.3}, {"accuracy: SiLU and HardSwish", 2.2, 4}, {"accuracy: as rounded", 0.8},
        {"accuracy: equalization", 2.3, 4},  {"accuracy: each value", 1.4, 2},         {"accuracy: range choice", 0.4},
        {"accuracy: fallback", 0.9, 2}};
    stages.insert(stages.end(), measured.begin(), measured.end());
  }
  const bool is_named = tunes(options.finetune.solver);
  if (quantizes && (is_named || options.finetune.solver == WeightSolver::automatic)) {
    stages.push_back({"finetune", is_named ? 17.0 : 5.2});  // else by gptq, and only where that is of use
    stages.push_back({"accuracy: weight tuning", 1.1});
  }
  add_last(stages, options, {0.9, 0.6, 1.4});
  return stages;
}

Overall::Overall(const std::vector<ExpectedStage>& stages) {
  for (const auto& stage : stages) stages_.push_back({stage});
}

Overall::Stage* Overall::find(const std::string& name) {
  const auto stage = std::find_if(stages_.begin(), stages_.end(), [&](const auto& s) { return s.name == name; });
  return stage == stages_.end() ? nullptr : &*stage;
}

void Overall::expect(const std::string& name, double times) {
  auto* const stage = find(name);
  if (stage != nullptr && !stage->began) stage->times = times;
}

std::size_t Overall::first_of_turns(std::size_t index) const {
  while (index > 0 && stages_[index].takes_turns) --index;
  return index;
}

void Overall::update(const std::string& name, std::uint64_t done, std::uint64_t total) {
  auto* const stage = find(name);
  if (stage == nullptr || total == 0) return;
  const auto first = first_of_turns(static_cast<std::size_t>(stage - stages_.data()));
  if (first < current_) return;
  current_ = first;
  if (!stage->began && stage->work > 0) stage->times = static_cast<double>(total) / static_cast<double>(stage->work);
  stage->began = true;
  if (done < stage->last) ++stage->before;
  stage->last = done;
  const double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  stage->part = std::max(stage->part, (stage->before + part) / std::max(stage->passes, stage->before + 1));
  double worked = 0, left = 0;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const auto& each = stages_[i];
    const double share = each.share * each.times;
    if (i < current_) {
      if (each.began || each.name == kOpening) worked += share;
      continue;
    }
    worked += share * each.part;
    left += share * (1 - each.part);
  }
  done_ = std::max(done_, worked / (worked + left));
}

}  // namespace detent::cli
