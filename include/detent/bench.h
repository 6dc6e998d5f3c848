// Times models side by side in ONNX Runtime, as a program would run them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/error.h"
#include "detent/latency.h"
#include "detent/options.h"

namespace detent {

using BenchOptions = Options;

/// All nodes of one operator type in the graph that the runtime makes of a model.
struct OperatorTime {
  std::string op_type;
  std::size_t nodes = 0;
  double seconds = 0;  // of one run
  double share = 0;    // of all nodes' time
};

/// Latency, size and memory of a model.
struct BenchedModel {
  std::filesystem::path model;
  std::uint64_t bytes = 0;  // on disk, with external data
  double load_seconds = 0;  // until the session was made
  Latency latency;
  std::optional<std::uint64_t> peak_memory;  // [bytes] of a process that loads and runs the model; unset: not measured
  std::vector<OperatorTime> operators;       // slowest first
};

/// Latency, size and memory of models, side by side.
struct BenchResult {
  std::vector<BenchedModel> models;
  int threads = 0;
  std::size_t samples = 0;
  bool synthetic = false;  // the samples
  std::string runtime;     // version of ONNX Runtime
  std::vector<std::string> notes;
};

/// Loads all models and times their runs in turns, after warming up. Throws Error.
BenchResult bench(const BenchOptions& options);

}  // namespace detent
