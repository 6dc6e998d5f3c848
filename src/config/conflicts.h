// Options that contradict each other, as data: what is refused, why, and what to change.
#pragma once

#include <span>
#include <string_view>

#include "config/option.h"
#include "detent/quantize.h"

namespace detent::config {

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

}  // namespace detent::config
