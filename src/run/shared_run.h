// One run of quantize() or search() by several processes: all make the same decisions, heavy work is shared out, rank 0
// writes.
#pragma once

#include <functional>
#include <stop_token>

#include "detent/quantize.h"
#include "detent/search.h"
#include "shim/ranks.h"

namespace detent::run {

/// Thrown on a rank that has done its share; what is left is rank 0's alone.
struct ShareDone {};

/// To be called where nothing is left to be shared out: returns on rank 0 only, and in a process that is alone.
void leave_rest_to_first(const Resources& resources);

/// Collective: what `measure` finds on rank 0, which alone calls it.
double measured_by_first(const Resources& resources, const std::stop_token& stop,
                         const std::function<double()>& measure);

/// Calls `call` on each rank with the options that it has there: ranks other than 0 write, report and keep nothing.
/// Errors name the rank and its host. Throws usage where ranks have other options, and bad_input where they do not read
/// the same model.
QuantizeResult run_among(shim::Ranks& ranks, const QuantizeOptions& options,
                         const std::function<QuantizeResult(const QuantizeOptions&)>& call);
SearchResult run_among(shim::Ranks& ranks, const SearchOptions& options,
                       const std::function<SearchResult(const SearchOptions&)>& call);

}  // namespace detent::run
