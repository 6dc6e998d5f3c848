// Models run in turns, so that what else the machine does hits all of them alike, and each run is timed.
#pragma once

#include <cstddef>
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
  Session* session = nullptr;
  std::string where;                                  // names the model in messages
  std::span<const std::vector<data::Array>> samples;  // in turn
};

struct TimingOptions {
  std::size_t runs = 0;          // of each model; 0: as many as the time allows
  double seconds = 1;            // of all models, about; without meaning where `runs` is given
  std::size_t least_rounds = 3;  // of each model, whatever the time
};

/// For each model the runs of each turn. All models have as many turns, and as many runs in a turn: as many as make the
/// slowest run a few hundredths of a second. Before them each model runs twice untimed (slow ones once), and fast ones
/// once before each turn, since the others' turns leave them cold caches.
std::vector<std::vector<std::vector<RunTime>>> time_interleaved(std::span<const Timed> models,
                                                                const TimingOptions& options);

}  // namespace detent::exec
