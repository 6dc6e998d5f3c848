// What every pass over the samples of one run shares.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "base/error.h"
#include "base/process.h"
#include "config/option.h"
#include "detent/progress.h"
#include "detent/quantize.h"
#include "detent/resources.h"
#include "detent/search.h"
#include "exec/session.h"
#include "shim/ranks.h"

namespace detent::run {

/// What a pass may use, and who hears of it. A value: copies are cheap and can be changed, for another directory or
/// another number of threads.
struct Context {
  const exec::Runtime& runtime;  // must outlive the context
  Resources resources;
  std::filesystem::path directory;  // for working files
  int threads = 0;                  // of the runtime; 0: one per core
  Progress progress = {};
  std::stop_token stop = {};
  /// Where the model's nodes run; null: on the CPU.
  std::shared_ptr<const shim::Device> place = {};
};

/// What a run is told that its time limit has ended.
Error time_is_over(double seconds, const std::string& hint);

/// What a process has to load a small model in (exec::GuardOptions::load_seconds).
inline double seconds_to_load(std::optional<double> time_limit) {
  constexpr double kLeast = 300;
  return std::max(kLeast, time_limit.value_or(0));
}

/// Calls `call` with the options; with a time limit it is stopped as by the user when that time has passed, and throws
/// resource. `hint`: what to do then.
template <class Call>
auto within_time(const Options& options, const Call& call, const std::string& hint = "give more") {
  const auto limit = options.resources.time_limit;
  if (!limit) return call(options);
  const Deadline deadline(*limit, options.stop, time_is_over(*limit, hint));
  auto limited = options;
  limited.stop = deadline.token();
  try {
    return call(limited);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted || !deadline.passed()) throw;
    throw deadline.error();
  }
}

/// The hint for a run that --resume goes on with.
std::string hint_to_resume(const Resources& resources);

// One run of quantize() or search() by several processes: all make the same decisions, heavy work is shared out, rank 0
// writes.

/// Thrown on a rank that has done its share; what is left is rank 0's alone.
struct ShareDone {};

/// To be called where nothing is left to be shared out: returns on rank 0 only, and in a process that is alone.
void leave_rest_to_first(const Resources& resources);

/// Collective: what `measure` finds on rank 0, which alone calls it.
double measured_by_first(const Resources& resources, const std::stop_token& stop,
                         const std::function<double()>& measure);

/// Collective: throws usage where ranks have other options, and bad_input where they do not read the same model and
/// samples. Errors name the rank and its host.
void check_same_among(shim::Ranks& ranks, const Options& options, config::Command command);

/// Calls `call` on each rank with the options that it has there: ranks other than 0 write, report and keep nothing.
/// Throws what check_same_among() throws, and names the rank and its host in all errors.
QuantizeResult run_among(shim::Ranks& ranks, const QuantizeOptions& options,
                         const std::function<QuantizeResult(const QuantizeOptions&)>& call);
SearchResult run_among(shim::Ranks& ranks, const SearchOptions& options,
                       const std::function<SearchResult(const SearchOptions&)>& call);

}  // namespace detent::run
