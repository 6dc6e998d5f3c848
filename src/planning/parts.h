// Private to planning/: the parts that memory is made of.
#pragma once

#include <cstdint>

#include "graph/index.h"
#include "graph/liveness.h"
#include "graph/values.h"
#include "onnx/model.h"

namespace detent::planning {

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

}  // namespace detent::planning
