// All checks of options, before anything is read or run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "config/option.h"
#include "detent/quantize.h"

namespace detent::config {

/// Throws usage for options that make no sense or contradict each other, naming them and what to change. A plan needs
/// no samples.
void validate(const Options& options, Command command = kQuantize);

// What tells one run from another: the options that its statistics and its integers depend on.

/// The values of all options that affect this, by name: {"--samples": 8, …}.
nlohmann::json identity(const Options& options, Affects what, Command command = kQuantize);

/// All that what a run keeps depends on: the statistics, and integers where a tuned layer may be among it.
nlohmann::json run_identity(const QuantizeOptions& options);

// Options that contradict each other, as data: what is refused, why, and what to change.

/// A statement about options, such as "weights become floats".
using Fact = bool (*)(const QuantizeOptions&);

/// Two facts that do not go together.
struct Conflict {
  unsigned results;  // that the row is about: a mask of Result
  Fact first;
  Fact second;
  std::string_view why;  // the error; "{preset}" stands for the value of --preset, and so for each option
  std::string_view hint;
  unsigned commands = kQuantize | kPlan;  // that refuse it
};

/// All of them, in the order in which they are looked for.
std::span<const Conflict> conflicts();

/// Throws usage for the first conflict that a run of this command has. Options of several results (family) are looked
/// at one result at a time.
void check_conflicts(const QuantizeOptions& options, unsigned command);

// The schema for what is not C++: the Python package, and the script that writes documentation and completions.

/// {"options": [{"name": "per-channel", "path": "config.per_channel", …}, …], "presets": [{"name": …, "help": …}, …],
/// "conflicts": [{"why": …, "hint": …}, …]}
nlohmann::json schema_json();

}  // namespace detent::config
