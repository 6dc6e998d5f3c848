// What tells one run from another: the options that its statistics and its integers depend on.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "config/option.h"

namespace detent::config {

/// The values of all options that affect this, by name: {"--samples": 8, …}.
nlohmann::json identity(const QuantizeOptions& options, Affects what);
nlohmann::json identity(const CalibrateOptions& options, Affects what);
nlohmann::json identity(const SearchOptions& options, Affects what);

/// All that what a run keeps depends on: the statistics, and integers where a tuned layer may be among it.
nlohmann::json run_identity(const QuantizeOptions& options);

}  // namespace detent::config
