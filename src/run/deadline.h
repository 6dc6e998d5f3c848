// A limit on the time of a run.
#pragma once

#include "base/deadline.h"
#include "base/error.h"

namespace detent::run {

/// What a run is told that Resources::time_limit has ended.
Error time_is_over(double seconds, bool resumable);

/// Calls `call` with the options; with Resources::time_limit it is stopped as by the user when that time has passed,
/// and throws resource.
template <class Options, class Call>
auto within_time(const Options& options, const Call& call) {
  if (!options.resources.time_limit) return call(options);
  const double seconds = *options.resources.time_limit;
  const Deadline deadline(seconds, options.stop, time_is_over(seconds, options.resources.resume));
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
