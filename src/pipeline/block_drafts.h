// A model on its way to weights in blocks: constants folded, the stream rotated, blocks drafted and reported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/file.h"
#include "detent/config.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"
#include "profile/profiler.h"
#include "quantization/assignment.h"
#include "quantization/blocks/block_stream.h"
#include "run/files/run_directory.h"
#include "shim/ranks.h"
#include "solve/sweep/block_weights.h"
#include "solve/sweep/weight_solving.h"

namespace detent::pipeline {

/// Weights that nodes make of constants, as exporters leave them: behind Identity, Cast, Reshape, products with a
/// number.
struct ComputedWeights {
  /// Called where there is something to compute; null: there is no runtime.
  std::function<const exec::Runtime*()> runtime;
  std::uint64_t most_bytes = 0;  // that the results may have
};

/// They become constants, as far as they are then stored in blocks: others stay as they are, so that the file does not
/// grow. Transposes of constants stay too, since blocks are made of what they read.
graph::Notes fold_computed_weights(onnx::Model& model, const QuantConfig& config, const WeightsOnlyConfig& blocks,
                                   const ComputedWeights& how);

/// The rotation of a transformer's weights within a run: where they lie, and what they take.
class StreamRotation {
 public:
  /// Rotated weights lie in the run's directory where there is one, else in one of their own for as long as this lives.
  StreamRotation(const QuantizeOptions& options, const run::RunDirectory* work, profile::Profiler& profiler);

  /// Rotates the residual stream and the heads. Throws bad_input where the model cannot be rotated, and resource,
  /// before anything is written, where the disk budget is too small.
  graph::Notes apply(onnx::Model& model, const std::optional<Transformer>& transformer);

  /// What rotated weights leave of --disk-budget, where it was given: they stay until the end.
  std::optional<std::uint64_t> disk_left() const { return resources_.disk_budget; }

 private:
  void take_disk(std::uint64_t bytes);

  const QuantizeOptions& options_;
  Resources resources_;
  std::optional<TempDir> own_;
  std::filesystem::path directory_;
};

/// place_blocks(), and weights that lie on grids. Of the formats q4 and q4f16 the last product of a decoder with a
/// cache, and the table that shares its weight, have 8 bits, without zero points where QuantConfig::weight_symmetric is
/// unset, if they are at most a quarter of the weights and node_bits does not name them.
quantization::Placement place_default_blocks(const onnx::Model& model, const QuantizeOptions& options,
                                             const std::optional<Transformer>& transformer);

/// What to say of a model none of whose weights can be stored in blocks.
Error no_blocks(const std::filesystem::path& model, const quantization::Placement& placement);

/// The float model, where its blocks go, and what was solved of them from samples.
struct DraftedBlocks {
  onnx::Model model;
  quantization::Placement placement;
  solve::SolvedBlocks solved;
  std::vector<solve::BlocksInPieces> in_pieces = {};  // what several ranks found of other weights

  /// Whether a weight that goes into blocks has this type in the float model.
  bool any_type(onnx::DataType type) const;
  /// Integers with scales of the weight's type, for which samples tell which are best.
  bool is_plain() const;
  /// Nodes that stand before all others where samples run through the model with its floats raised to float32.
  std::size_t casts_of_inputs() const;
  /// By the DequantizeLinear nodes that will be written; 0: none.
  std::int64_t needed_opset(WeightForm form) const;
  /// Of weights whose blocks have scales of 8 bits: the scale of all of them.
  void find_common_scales();
  /// Collective: several ranks find what samples did not solve, and rank 0 gets it. Working files go to `directory`.
  void share_out(WeightMethod method, shim::Ranks& ranks, const std::filesystem::path& directory, std::size_t threads,
                 const std::stop_token& stop);
  /// All weights in blocks, each solved as far as samples did, else by itself; this must outlive them. They throw
  /// interrupted where `stop` asks for it.
  std::vector<quantization::BlockStream> streams(WeightMethod method, std::size_t threads, std::stop_token stop) const;
  /// For emit_blocks(); this must outlive it.
  quantization::Assignment assignment(const WeightsOnlyConfig& config, std::size_t threads, std::stop_token stop) const;
  /// Why ONNX Runtime's CPU does not run the result; "": it does.
  std::string reason_against_running() const;
  /// Why a runtime may know the written file without having kernels for it; empty: it must run.
  std::string reason_against_proof() const;

 private:
  bool is_solved(std::size_t tensor) const { return tensor < solved.tensors.size() && solved.tensors[tensor]; }
  quantization::BlockSolver solver(std::size_t tensor, WeightMethod method, std::stop_token stop) const;
};

/// Of the tensor at this position of the placement. `solved` is empty where nothing was solved from samples.
BlockedWeight describe_weight(const onnx::Model& model, const quantization::Placement& placement,
                              const solve::SolvedBlocks& solved, std::size_t tensor,
                              const quantization::BlockErrors& errors, WeightMethod method);

}  // namespace detent::pipeline
