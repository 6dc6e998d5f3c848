// Trials of several processes.
#pragma once

#include <functional>
#include <span>
#include <stop_token>
#include <vector>

#include "remedies/trials.h"
#include "shim/ranks.h"

namespace detent::remedies {

/// Collective: each rank runs some of the trials by `run`, neighbours together, and all get the results of all. Null
/// runs all of them.
std::vector<TrialResult> share_trials(
    shim::Ranks* ranks, std::span<const Trial> trials, const std::stop_token& stop,
    const std::function<std::vector<TrialResult>(std::span<const Trial> trials)>& run);

}  // namespace detent::remedies
