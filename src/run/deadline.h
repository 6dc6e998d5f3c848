// A limit on the time of a run.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/error.h"

namespace detent::run {

/// What a run is told that its time limit has ended.
Error time_is_over(double seconds, const std::string& hint);

/// What a process has to load a small model in (exec::GuardOptions::load_seconds).
inline double seconds_to_load(std::optional<double> time_limit) {
  constexpr double kLeast = 300;
  return std::max(kLeast, time_limit.value_or(0));
}

/// Calls `call` with the options; with a time limit it is stopped as by the user when that time has passed, and throws
/// resource.
template <class Options, class Call>
auto within_time(const Options& options, const Call& call) {
  std::optional<double> limit;
  std::string hint = "give more";
  if constexpr (requires { options.limits; }) {
    limit = options.limits.time_limit;
  } else {
    limit = options.resources.time_limit;
    hint = options.resources.resume ? "the same command continues the run"
                                    : "give more, or --resume from the beginning, which keeps what is done for the "
                                      "next run";
  }
  if (!limit) return call(options);
  const Deadline deadline(*limit, options.stop, time_is_over(*limit, hint));
  Options limited = options;
  limited.stop = deadline.token();
  try {
    return call(limited);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted || !deadline.passed()) throw;
    throw deadline.error();
  }
}

}  // namespace detent::run
