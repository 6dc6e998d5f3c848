// Statistics of the samples of several processes.
#pragma once

#include <stop_token>

#include "calibration/statistics.h"
#include "shim/ranks.h"

namespace detent::run {

/// Collective: rank 0 ends with the statistics of all ranks' samples. Throws bad_input where they are of different
/// models.
void gather_statistics(shim::Ranks& ranks, calibration::Statistics& statistics, const std::stop_token& stop);

/// The same, and all ranks get them.
void merge_statistics(shim::Ranks& ranks, calibration::Statistics& statistics, const std::stop_token& stop);

}  // namespace detent::run
