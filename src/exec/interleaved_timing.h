// Models run in turns, so that what else the machine does hits all of them alike, and each run is timed.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/sample.h"
#include "exec/session.h"

namespace detent::exec {

/// Seconds of one run.
struct RunTime {
  double wall = 0;
  double cpu = 0;  // of all the process's threads
  double own = 0;  // of the thread that called the runtime, which waits for others busily: less than `wall` only where
                   // it waited for a processor
};

struct Timed {
  std::function<Session()> open;                      // once, or with `one_open` before its turns
  std::string where;                                  // names the model in messages
  std::span<const std::vector<data::Array>> samples;  // in turn
};

struct TimingOptions {
  std::size_t runs = 0;          // of each model; 0: as many as the time allows
  double seconds = 1;            // of all models, about; without meaning where `runs` is given
  std::size_t least_rounds = 3;  // of each model, whatever the time
  bool one_open = false;         // each model is closed before the next one opens, so that memory is that of one
};

/// For each model the runs of each turn. All models have as many turns, and as many runs in a turn: as many as make the
/// slowest run a few hundredths of a second; with `one_open` more, and each model that was open goes on with its next
/// turn, since opening costs. Before them each model runs twice untimed (slow ones once), then once before each turn:
/// the others' turns leave fast models cold caches, and a model that has just opened has no memory yet.
std::vector<std::vector<std::vector<RunTime>>> time_interleaved(std::span<const Timed> models,
                                                                const TimingOptions& options);

}  // namespace detent::exec
