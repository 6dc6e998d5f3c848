// Statistics of the samples of several processes.
#pragma once

#include <stop_token>

#include "calibration/statistics.h"
#include "shim/ranks.h"

namespace detent::run {

/// Collective: each rank's statistics become those of all ranks' samples.
void merge_statistics(shim::Ranks& ranks, calibration::Statistics& statistics, const std::stop_token& stop);

}  // namespace detent::run
