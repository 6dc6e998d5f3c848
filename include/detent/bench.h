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
#include "detent/progress.h"
#include "detent/resources.h"
#include "detent/samples.h"

namespace detent {

struct BenchOptions {
  std::vector<std::filesystem::path> models;
  /// Real inputs. Without them, inputs are made up from the declared shapes: floats in [0, 1), integers 1.
  std::filesystem::path calibration_data;
  /// Samples in memory instead of calibration_data; must outlive the run.
  SampleStream* samples = nullptr;
  std::size_t max_samples = 0;  // 0: the first 16
  std::int64_t batch_size = 0;
  /// Inputs that are one number in every sample, beside those that the samples hold: "sr=16000".
  std::vector<std::string> input_values;
  /// Shapes of made-up inputs, by input name. Without them free dimensions become 1 (the first axis), 3 (channels of
  /// pictures), 224 (their height and width) or 128.
  std::map<std::string, std::vector<std::int64_t>> input_shapes;
  int threads = 0;       // of the runtime; 0: one per core
  std::size_t runs = 0;  // of each model; 0: as many as `seconds` allows
  double seconds = 2;    // of timed runs for each model, about
  /// Also time each operator type, by the runtime's own profile of further runs.
  bool by_operator = false;
  /// Measure the peak memory of each model in a process of its own, which `program` (the command detent) is started
  /// for.
  bool memory = true;
  std::filesystem::path program;
  std::optional<std::filesystem::path> runtime;
  Limits limits;
  Progress progress;
  std::stop_token stop;
};

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
