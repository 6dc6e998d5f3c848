// The only door to ONNX Runtime.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "data/sample.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "shim/cuda_driver.h"

namespace detent::exec {

// How long each node took, from the profile that ONNX Runtime writes of its runs.

/// A node of the runtime's own graph: fused nodes go by one of their names, and nodes of its making are among them.
struct NodeTime {
  std::string name;
  std::string op_type;
  double start = 0;           // seconds since the session was made
  double seconds = 0;         // of one execution
  std::string provider = {};  // that ran it, as in Device::provider
};

/// Every execution of every node, in the order in which they ended. Lines that are not understood are passed over.
std::vector<NodeTime> read_node_times(const std::filesystem::path& path);

/// The last execution of each node.
std::vector<NodeTime> last_of_each(std::vector<NodeTime> times);

struct EmitOptions;  // exec/emit.h

/// ONNX Runtime, loaded. One per process is enough; sessions keep it alive.
class Runtime {
 public:
  /// Loads the library (see shim::load_onnxruntime). Throws device when it is missing or too old. Each run of a session
  /// may take `run_limit` seconds.
  explicit Runtime(const std::optional<std::filesystem::path>& library = {}, std::optional<double> run_limit = {});
  const std::string& version() const;
  /// Whether it was built with this execution provider.
  bool has_provider(std::string_view name) const;
  const std::optional<double>& run_limit() const noexcept { return run_limit_; }
  /// Largest sum of activations and working memory that lean sessions have had in use at one time; of all runs of the
  /// process that go on side by side.
  std::uint64_t peak_activation_bytes() const;

  struct Impl;
  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
  std::optional<double> run_limit_;
};

enum class SessionMode {
  lean,      // least memory, results independent of fusions: calibration and comparison
  blocked,   // lean, but convolutions run in the runtime's blocked layout (x86): faster, for a copy of their weights
  deployed,  // the runtime's defaults, all optimizations: what a user's program would run
  inspect,   // nothing is optimized and nothing will run: for types and shapes
};

struct SessionOptions {
  SessionMode tuning = SessionMode::lean;
  int threads = 0;  // 0: one per core
  std::stop_token stop;
  /// Its runs are timed, so that it has what the runtime gives to a user's program: idle threads spin for a while, and
  /// free memory is kept for this session. Elsewhere idle threads sleep at once, which saves processor time, and free
  /// memory is the process's.
  bool is_timed = false;
  /// Times of nodes are recorded, in a file whose path starts so, until Session::end_recording().
  std::filesystem::path record = {};
  /// The graph that the runtime made of the model is written there as a model, its large weights beside it.
  std::filesystem::path optimized_model = {};
  /// Receivers change what they are handed, see data::TensorView::passed_on.
  bool edits = false;
  /// Nodes run there as far as the runtime has them for it, and all taps do; inputs are copied to it. Must outlive the
  /// session, which runs one sample at a time.
  const shim::Device* device = nullptr;
  /// Nodes run there as far as the runtime has them for it; taps and results are the host's. Null: on the CPU.
  std::shared_ptr<const shim::Device> place = {};
  /// The execution provider of deployed sessions, by its name in the runtime; the CPU runs what it does not take.
  std::string provider = {};
  /// Without it run() returns nothing, and results never leave the device.
  bool keep_results = true;
};

/// An input or output of a session. Dynamic dimensions are -1.
struct Port {
  std::string name;
  graph::ValueType type;
};

struct Ports {
  std::vector<Port> inputs, outputs;
};

class Session {
 public:
  /// `model` is a serialized model, see emit(); `where` names it in messages. Throws bad_input when the runtime refuses
  /// the model, device when it cannot run on the device.
  Session(const Runtime& runtime, const std::string& model, const std::string& where,
          const SessionOptions& options = {});
  /// A model as the runtime itself reads it from its file.
  static Session of_file(const Runtime& runtime, const std::filesystem::path& model, const SessionOptions& options);
  Session(Session&&) noexcept;
  ~Session();

  const std::vector<Port>& inputs() const;
  const std::vector<Port>& outputs() const;

  /// Runs once with one array for each input, in order. The results own their memory. `where` names the sample in
  /// messages; `receiver` gets the taps of this run, which must be given when the model has any. Several threads may
  /// run one session at a time: they share its weights and threads, and each result is what it would be alone. Throws
  /// what a receiver threw, interrupted when the stop token was set, resource when the limit of Runtime has passed,
  /// bad_input, resource or device when the runtime fails.
  std::vector<data::Array> run(std::span<const data::Array> inputs, const std::string& where,
                               data::TapReceiver* receiver = nullptr);

  /// Ends the recording of SessionOptions::record and returns what the last run gave; its file is removed. Not while
  /// runs are on.
  std::vector<NodeTime> end_recording();
  /// The same for each execution of each node, in the order in which they ended.
  std::vector<NodeTime> end_recording_of_runs();

 private:
  Session(const Runtime& runtime, const SessionOptions& options);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What a session of a model has, which is emitted so.
using PortsOf = std::function<Ports(const onnx::Model& model, const EmitOptions& options, SessionMode mode)>;

/// Element types and shapes of all values of the main graph, as the runtime infers them. Values inside bodies are left
/// out, unless these are unfolded (onnx/bodies.h). The runtime is asked in a process of its own (guarded_ports()).
/// Throws bad_input when the runtime cannot load the model.
graph::ValueTypes infer_value_types(const Runtime& runtime, const onnx::Model& model,
                                    const std::map<std::string, std::vector<std::int64_t>>& input_shapes = {});
/// The same, as told by `ports_of`: one process for several models.
graph::ValueTypes infer_value_types(const PortsOf& ports_of, const onnx::Model& model,
                                    const std::map<std::string, std::vector<std::int64_t>>& input_shapes = {});

/// Computes the given constant nodes (graph::constant_nodes) once; returns the values that others read.
std::vector<onnx::Tensor> compute_constants(const Runtime& runtime, const onnx::Model& model,
                                            const std::vector<int>& nodes);

// Private to exec/: what the runtime says, made fit for users.

/// Its messages carry source paths and line breaks; users need one line.
std::string one_line(const std::string& text);

/// Why the runtime does not take a model, and what to do about it.
struct Refusal {
  std::string message, hint;
};
/// In plain words, where the model or an operator of it is newer than the runtime, or unknown to it; nothing for other
/// texts.
std::optional<Refusal> refusal_of(const std::string& text);

/// The newest opset of ONNX that the runtime knows, where the text of an error says that a model has a newer one.
std::optional<std::int64_t> known_opset(const std::string& text);
/// The operator that the runtime does not know, where the text of an error names one; else empty.
std::string unknown_operator(const std::string& text);

/// Which execution providers a library of ONNX Runtime was built with.
struct Providers {
  std::vector<std::string> names;  // "OpenVINOExecutionProvider", …; the CPU's is the last
  std::string runtime;             // "ONNX Runtime 1.31.1"
};

/// Loads the library (shim::load_onnxruntime) and asks it; makes nothing that sessions would share. Throws device.
Providers available_providers(const std::optional<std::filesystem::path>& library);

/// Gives back to the system what no session of this runtime uses at the moment: before another process runs a model, so
/// that both together take no more than one of them. The next run maps its memory anew.
void give_back_unused(const Runtime& runtime) noexcept;

}  // namespace detent::exec
