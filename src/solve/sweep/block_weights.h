// Weights in blocks, solved from what their products read on samples: one pass over the float model, in which each
// weight is solved as soon as all samples have gone by.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "shim/ranks.h"
#include "solve/sweep/gram_sweep.h"
#include "solve/sweep/input_scaling.h"
#include "solve/sweep/stored_blocks.h"

namespace detent::solve {

struct BlockSolving {
  WeightsOnlyConfig config = {};                    // its method and sparsity
  bool scale_inputs = true;                         // where the method does so
  std::optional<std::uint64_t> memory_budget = {};  // of this process; it changes no byte
  std::filesystem::path directory;                  // solutions are saved there, and found again by a resumed run
  GramSweepOptions sweep = {};
  shim::Ranks* ranks = nullptr;  // that take shares of the weights; null: alone
};

struct SolvedBlocks {
  std::vector<std::optional<StoredBlocks>> tensors;  // as in the placement; unset: no product reads it
  std::uint64_t samples = 0;
  /// What inputs are divided by; the solutions are those of weights that have been multiplied accordingly, and hold
  /// once these folds have been applied.
  std::vector<std::pair<quantization::InputFold, InputScaling>> scalings;
};

/// Held-back samples, see sweep_grams(), decide which method is kept. The result depends on the samples and their order
/// alone. Where there are several ranks this is a collective, and rank 0 alone gets all solutions. Throws what the
/// runtime, the samples and the spool throw.
SolvedBlocks solve_blocks(const onnx::Model& model, const graph::ValueTypes& types,
                          const quantization::BlockPlacement& placement, const std::vector<BlockStage>& stages,
                          const exec::Runtime& runtime, data::SampleSource& source, const BlockSolving& options);

}  // namespace detent::solve
