// What the runtime makes of a model and how long that takes: its own graph, each kernel, whole models side by side.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "data/sample.h"
#include "exec/session.h"
#include "onnx/model.h"

namespace detent::exec {

// What each kernel of a model takes in a session as a user's program would make it, by ONNX Runtime's own profile.

/// A node of the graph that the runtime makes of the model, with all its optimizations.
struct Kernel {
  std::string name;
  std::string op_type;               // "QLinearConv"; what the runtime fused goes by the operator it made
  std::vector<std::string> outputs;  // values of the model that it makes; empty if it makes none, as changes of layout
  double seconds = 0;                // in one run of the model, without the nodes of its bodies
};

struct KernelTimesOptions {
  int threads = 0;                       // 0: one per core
  std::size_t runs = 20;                 // at most, and
  double seconds = 1;                    // about so long, but three runs at the least
  bool fastest = false;                  // the shortest of each kernel's times, not the median
  double* run = nullptr;                 // gets the processor's seconds of the shortest run in the calling thread
  std::filesystem::path directory = {};  // for working files, which do not stay; empty: a directory of its own
  std::stop_token stop = {};
};

/// Runs the model on the samples in turn and takes the median of each kernel's times, or the shortest; nodes in bodies
/// are listed with the others, by how often they run. In the order in which they first ran. Of what is fused, `outputs`
/// names the last value. Throws what Session throws.
std::vector<Kernel> kernel_times(const Runtime& runtime, const onnx::Model& model,
                                 std::span<const std::vector<data::Array>> samples, const KernelTimesOptions& options);

/// Processor seconds of the shortest run in the calling thread, in such a session without a profile.
double run_seconds(const Runtime& runtime, const onnx::Model& model, std::span<const std::vector<data::Array>> samples,
                   const KernelTimesOptions& options);

// Models run in turns, so that what else the machine does hits all of them alike, and each run is timed.

/// Seconds of one run.
struct RunTime {
  double wall = 0;
  double cpu = 0;  // of all the process's threads
  double own = 0;  // of the thread that called the runtime, which waits for others busily: less than `wall` only where
                   // it waited for a processor
};

struct Timed {
  std::function<Session()> open;                      // once, or with `one_open` before its turns
  std::string where;                                  // names the model in messages
  std::span<const std::vector<data::Array>> samples;  // in turn
};

struct TimingOptions {
  std::size_t runs = 0;          // of each model; 0: as many as the time allows
  double seconds = 1;            // of all models, about; without meaning where `runs` is given
  std::size_t least_rounds = 3;  // of each model, whatever the time
  bool one_open = false;         // each model is closed before the next one opens, so that memory is that of one
};

/// For each model the runs of each turn. All models have as many turns, and as many runs in a turn: as many as make the
/// slowest run a few hundredths of a second; with `one_open` more, and each model that was open goes on with its next
/// turn, since opening costs. Before them each model runs twice untimed (slow ones once), then once before each turn:
/// the others' turns leave fast models cold caches, and a model that has just opened has no memory yet.
std::vector<std::vector<std::vector<RunTime>>> time_interleaved(std::span<const Timed> models,
                                                                const TimingOptions& options);

// What the runtime makes of a model's nodes when it loads the model as a user's program does.

/// For each node of the main graph the type of the operator that the runtime, with all its optimizations, runs in its
/// place on the CPU: MatMulNBits for a MatMul whose weight comes from a DequantizeLinear that it fuses, say. Empty
/// where the node has become part of another one or is gone. The runtime's graph is written to a temporary folder, as
/// large as the model, and read back; nothing is run. Throws bad_input when the runtime cannot load the model or write
/// it.
std::vector<std::string> deployed_op_types(const Runtime& runtime, const onnx::Model& model);

}  // namespace detent::exec
