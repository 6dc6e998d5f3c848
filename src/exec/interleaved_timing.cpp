#include "exec/interleaved_timing.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/heap.h"
#include "profile/meters.h"

namespace detent::exec {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTurn = 0.03, kTurnOfOne = 0.06;  // seconds of the slowest model
constexpr double kSlow = 0.3;                      // a run for which being warm makes little difference
constexpr std::size_t kMostRuns = 1000;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Turns {
 public:
  Turns(std::span<const Timed> models, const TimingOptions& options)
      : models_(models),
        options_(options),
        sessions_(models.size()),
        next_sample_(models.size()),
        turns_(models.size()) {}

  std::vector<std::vector<std::vector<RunTime>>> run() {
    const auto start = Clock::now();
    double slowest = 0;
    for (std::size_t m = 0; m < models_.size(); ++m) {
      double pace = run_once(m).wall;
      if (pace < kSlow) pace = run_once(m).wall;
      slowest = std::max(slowest, pace);
    }
    const double length = options_.one_open ? kTurnOfOne : kTurn;
    const auto in_a_turn = static_cast<std::size_t>(length / std::max(slowest, length / kMostRuns));
    std::size_t done = 0;
    for (std::size_t turn = 0; goes_on(turn, done, seconds_since(start)); ++turn) {
      std::size_t count = std::max(in_a_turn, std::size_t{1});
      if (options_.runs > 0) count = std::min(count, options_.runs - done);
      for (std::size_t m = 0; m < models_.size(); ++m) {
        const bool backwards = options_.one_open && turn % 2 == 0;  // the last one is open
        take_turn(backwards ? models_.size() - 1 - m : m, count);
      }
      done += count;
    }
    return std::move(turns_);
  }

 private:
  bool goes_on(std::size_t turns, std::size_t runs, double seconds) const {
    if (options_.runs > 0) return runs < options_.runs;
    return turns < options_.least_rounds || seconds < options_.seconds;
  }

  void take_turn(std::size_t model, std::size_t count) {
    auto& times = turns_[model].emplace_back();
    if (count > 1 || !sessions_[model]) run_once(model);
    for (std::size_t i = 0; i < count; ++i) times.push_back(run_once(model));
  }

  RunTime run_once(std::size_t m) {
    const auto& model = models_[m];
    const auto& sample = model.samples[next_sample_[m]++ % model.samples.size()];
    auto& session = opened(m);
    const auto start = Clock::now();
    const double cpu = profile::cpu_seconds(), own = profile::thread_cpu_seconds();
    session.run(sample, model.where);
    const RunTime time{seconds_since(start), profile::cpu_seconds() - cpu, profile::thread_cpu_seconds() - own};
    return time;
  }

  Session& opened(std::size_t m) {
    auto& session = sessions_[m];
    if (session) return *session;
    if (options_.one_open) {
      for (auto& other : sessions_) other.reset();
      trim_heap();
    }
    const LargeBlocksApart apart;
    session.emplace(models_[m].open());
    // The runtime plans its memory in the first run, and takes it in the second.
    if (options_.one_open) run_once(m);
    return *session;
  }

  std::span<const Timed> models_;
  const TimingOptions& options_;
  std::vector<std::optional<Session>> sessions_;
  std::vector<std::size_t> next_sample_;
  std::vector<std::vector<std::vector<RunTime>>> turns_;
};

}  // namespace

std::vector<std::vector<std::vector<RunTime>>> time_interleaved(std::span<const Timed> models,
                                                                const TimingOptions& options) {
  return Turns(models, options).run();
}

}  // namespace detent::exec
