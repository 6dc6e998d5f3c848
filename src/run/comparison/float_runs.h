// The float model's results on some samples, for comparisons with a model that runs in a process of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "data/sample.h"
#include "data/tap.h"
#include "exec/session.h"

namespace detent::run {

struct FloatRun {
  data::Sample sample;
  std::vector<data::Array> results;
};

/// Bytes of samples and results that may stand in memory.
inline constexpr std::uint64_t kFloatRunBytes = std::uint64_t{16} << 20;

/// For several models that are compared on the same samples.
struct KeptFloatRuns {
  std::uint64_t limit = kFloatRunBytes;
  std::vector<FloatRun> runs = {};
  bool are_all = false;  // otherwise each comparison runs the float model anew
};

/// The float model: loaded at its first run, and again at the first one after it was closed.
struct FloatModel {
  std::function<std::vector<data::Array>(const data::Sample& sample)> run;
  std::function<void()> close;
};

/// That of one session; `receiver` (or null), which must outlive it, gets the taps of each run.
FloatModel model_of_session(std::function<exec::Session()> open, data::TapReceiver* receiver);

class FloatRuns {
 public:
  /// At most `most` samples from where `source` stands. Runs that `kept` (or null) has are not done again. All that is
  /// given outlives this.
  FloatRuns(FloatModel model, data::SampleSource& source, std::size_t most, KeptFloatRuns* kept = nullptr);

  /// Runs samples before they are asked for, until their inputs and results take so many bytes. Where no more are left
  /// then, the model is closed: it does not stand in memory beside the other model's.
  void run_ahead(std::uint64_t bytes);

  /// nullopt after the last. Throws what the source and the model throw.
  std::optional<FloatRun> next();

 private:
  std::optional<FloatRun> run();
  void keep(const std::optional<FloatRun>& run);

  FloatModel model_;
  data::SampleSource& source_;
  std::size_t left_;
  KeptFloatRuns* kept_;
  std::uint64_t kept_bytes_ = 0;
  bool ended_ = false;
  std::deque<FloatRun> ahead_;
};

}  // namespace detent::run
