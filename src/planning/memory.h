// Memory that a run takes, predicted: its parts, the graph as the runtime executes it, calibration, and what is
// available.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exec/session.h"
#include "graph/execution.h"
#include "graph/index.h"
#include "onnx/model.h"

namespace detent::planning {

// Private to planning/: the parts that memory is made of.

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;

// Measured with ONNX Runtime 1.31 on x86-64: docs/decisions/008.
inline constexpr std::uint64_t kProcess = 38 * kMiB;      // detent and the runtime, a model read
inline constexpr std::uint64_t kSessionNode = 16 * kKiB;  // a node of a session, taps among them
inline constexpr std::uint64_t kHistogram = 30 * kKiB;    // a typical summary
inline constexpr std::uint64_t kScratch = 512 * kKiB;     // counting tables of a thread, as far as they are touched

inline constexpr std::uint64_t kMostBuffers = 64 * kMiB;  // more makes no spool faster

/// What a spool holds on its way to disk and from there, for stages that read and write so much of a sample.
std::uint64_t spool_buffers(std::uint64_t bytes_of_sample);

/// Weights are mapped and become resident as they are read: all of them, but of tables that rows are gathered from only
/// these rows.
std::uint64_t resident_bytes(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                             const onnx::Tensor& weight);

/// The weights of a convolution; 0 for other nodes.
std::uint64_t convolution_weights(const onnx::Model& model, const graph::Index& index, const onnx::Node& node);
/// Those of all nodes of the main graph.
std::uint64_t convolution_weights(const onnx::Model& model);
/// Of these, what a session copies into the blocked layout: nothing where this machine has none.
std::uint64_t copied_weights(const onnx::Model& model);

/// What the runtime's kernels allocate beside inputs and outputs: in blocked layout a copy of an input that others
/// still read; for a transposed convolution all its products before they are added up. Refers to its arguments.
graph::Workspace workspace_of(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                              bool blocked);

// A model in the form that ONNX Runtime gives it for calibration: what is in memory at a time follows from this form,
// not from the file's.

/// Only for graph::liveness(): the model cannot be run.
struct Executed {
  onnx::Model model;
  graph::ValueTypes types;
};

/// Channels in a block of the runtime's blocked layout on this machine; 0 where it has none.
std::int64_t channel_block();

/// The nodes in the order that the runtime takes. Nodes that it does not let write over their input, though one could,
/// go by made-up operator types. With `block` channels to a block, convolutions that run in the blocked layout are
/// three nodes: one brings the input into that layout (once for all that read it), one computes, and one brings the
/// result back, because an observer reads it. `types` must be of static shapes.
Executed as_executed(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                     const std::vector<std::string>& observed, std::int64_t block);

// What calibration will take, told from the model and the shapes of a sample before anything runs.

/// The blocked layout costs a copy of the convolutions' weights outside of the mapped file: taken where that is little
/// beside what any session needs. Depends on the model alone, so that results do too.
exec::SessionMode session_mode_for(const onnx::Model& model);
/// Whether convolutions run in blocks then, which they do not on every machine.
bool runs_in_blocks(const onnx::Model& model);

/// A part of the peak, in bytes.
struct MemoryPart {
  std::string what;
  std::uint64_t bytes = 0;
};

struct CalibrationCost {
  std::vector<MemoryPart> memory;       // resident at the peak
  std::uint64_t weights = 0;            // of these, mapped weights and copies of them
  std::uint64_t activations = 0;        // of these, for all workers
  graph::Work work;                     // of one run of the float model
  std::uint64_t observed_elements = 0;  // in one run

  std::uint64_t peak_memory() const;
};

struct Circumstances {
  std::size_t observed = 0;  // tensors
  bool histograms = true;
  std::size_t threads = 1;
  std::size_t workers = 1;
  std::uint64_t sample_bytes = 0;
  std::uint64_t beside = 0;  // bytes of what else stands in memory all the time
  /// Samples run again and again, so that weights that are read anew for each run would be read without end: they stay
  /// resident while their segment runs.
  bool weights_stay = false;
};

/// What the summaries and the tables behind them take.
std::uint64_t statistics_bytes(const Circumstances& circumstances);

/// `types` must be of static shapes, as for the sample at hand; nullopt when some are not. `observed` names the values
/// under observation. The figures behind the parts that do not follow from the model (the process with the runtime in
/// it, a node of a session) were measured; docs/decisions/008 has them.
std::optional<CalibrationCost> calibration_cost(const onnx::Model& model, const graph::ValueTypes& types,
                                                const std::vector<std::string>& observed,
                                                const Circumstances& circumstances);

/// Bytes of memory that can be taken without swapping or being killed: the smaller of what is available on the machine
/// and what the cgroups (version 2 or 1) leave, file pages that can be dropped counted as free.
std::uint64_t available_memory();

/// Bytes that an ordinary user can still write to the file system of a directory.
std::uint64_t free_disk(const std::filesystem::path& directory);

/// The resource error for work that takes more than --memory-budget, with the smallest budget that works.
Error over_budget(std::string_view what, std::uint64_t needed, std::uint64_t budget);

}  // namespace detent::planning
