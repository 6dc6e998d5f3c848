// The float model's results on some samples, for comparisons with a model that runs in a process of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "data/sample.h"
#include "exec/session.h"

namespace detent::run {

struct FloatRun {
  data::Sample sample;
  std::vector<data::Array> results;
};

class FloatRuns {
 public:
  /// At most `most` samples from where `source` stands. `receiver` (or null) gets the taps of each run. Both outlive
  /// it.
  FloatRuns(exec::Session session, data::SampleSource& source, std::size_t most, data::TapReceiver* receiver);

  /// Runs samples before they are asked for, until their inputs and results take so many bytes. Where no more are left
  /// then, the session is closed: it does not stand in memory beside the other model's.
  void run_ahead(std::uint64_t bytes);

  /// nullopt after the last. Throws what the source and Session::run() throw.
  std::optional<FloatRun> next();

 private:
  std::optional<FloatRun> run();

  std::optional<exec::Session> session_;
  data::SampleSource& source_;
  std::size_t left_;
  data::TapReceiver* receiver_;
  std::deque<FloatRun> ahead_;
};

}  // namespace detent::run
