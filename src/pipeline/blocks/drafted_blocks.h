// A model on its way to weights in blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "detent/config.h"
#include "onnx/model.h"
#include "quantization/blocks/block_stream.h"
#include "quantization/blocks/block_weights.h"
#include "shim/ranks.h"
#include "solve/sweep/block_weights.h"
#include "solve/sweep/shared_blocks.h"

namespace detent::pipeline {

/// What to say of a model none of whose weights can be stored in blocks.
Error no_blocks(const std::filesystem::path& model, const quantization::BlockPlacement& placement);

/// The float model, where its blocks go, and what was solved of them from samples.
struct DraftedBlocks {
  onnx::Model model;
  quantization::BlockPlacement placement;
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
  /// Why ONNX Runtime's CPU does not run the result; "": it does.
  std::string reason_against_running() const;
  /// Why a runtime may know the written file without having kernels for it; empty: it must run.
  std::string reason_against_proof() const;

 private:
  bool is_solved(std::size_t tensor) const { return tensor < solved.tensors.size() && solved.tensors[tensor]; }
  quantization::BlockSolver solver(std::size_t tensor, WeightMethod method, std::stop_token stop) const;
};

}  // namespace detent::pipeline
