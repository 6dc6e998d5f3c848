// Latencies as the commands print them with --json.
#pragma once

#include <nlohmann/json.hpp>

#include "detent/latency.h"

namespace detent::cli {

inline nlohmann::json latency_json(const Latency& l) {
  return {{"runs", l.runs},
          {"min_seconds", l.min},
          {"median_seconds", l.median},
          {"p90_seconds", l.p90},
          {"cpu_seconds", l.cpu},
          {"ratio", l.ratio},
          {"ratio_low", l.ratio_low},
          {"ratio_high", l.ratio_high},
          {"cpu_ratio", l.cpu_ratio},
          {"waiting_share", l.waiting}};
}

}  // namespace detent::cli
