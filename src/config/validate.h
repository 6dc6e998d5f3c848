// All checks of options, before anything is read or run.
#pragma once

#include "config/option.h"

namespace detent::config {

/// Throw usage for options that make no sense or contradict each other, naming them and what to change. `command` is
/// kQuantize or kPlan: a plan needs no samples.
void validate(const QuantizeOptions& options, Command command = kQuantize);
void validate(const CalibrateOptions& options);
void validate(const CompareOptions& options);
void validate(const BenchOptions& options);
void validate(const SearchOptions& options);
void validate(const VerifyOptions& options);

}  // namespace detent::config
