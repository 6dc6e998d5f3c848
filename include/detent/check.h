// Tells, before deployment, what a target makes of each node of a model: from tables, without the target's software.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/error.h"
#include "detent/options.h"

namespace detent {

using CheckOptions = Options;

/// `accepted`: the target runs the node, in integers where it is quantized. `falls_back`: it runs it in floating point
/// although it is quantized, or leaves it to the CPU. `refused`: the target does not load the model because of it, or
/// computes it wrongly.
enum class Verdict { accepted, falls_back, refused };

/// A node that computes; Q/DQ pairs and constants belong to the nodes that they stand around.
struct CheckedNode {
  std::string name;
  std::string op_type;
  Verdict verdict = Verdict::accepted;
  bool on_cpu = false;     // falls back to the CPU's own operators: the graph is cut here
  std::string precision;   // of the kernel: "int8", "float32", …; "" where nothing is computed
  std::string rule;        // that decides it
  std::string suggestion;  // what would change it; "" where nothing is to be changed
  std::optional<std::uint64_t> macs;
};

/// What a target makes of a model.
struct CheckResult {
  std::string target;
  std::string target_reason;       // where the target was "auto": which execution provider it was chosen by
  std::vector<CheckedNode> nodes;  // in graph order
  std::size_t accepted = 0, falls_back = 0, refused = 0;
  /// Multiplications of one run, and those in integers; unset if a shape is unknown.
  std::optional<std::uint64_t> macs, integer_macs;
  /// Parts of the graph that the target runs, each without the CPU in between.
  std::size_t partitions = 0;
  /// What concerns the model as a whole, such as dynamic shapes.
  std::vector<std::string> problems;
};

/// Reads the model and runs nothing. Throws Error.
CheckResult check(const CheckOptions& options);

}  // namespace detent
