// Weights in blocks, solved from what their products read on samples: one pass over the float model, in which each
// weight is solved as soon as all samples have gone by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/config.h"
#include "detent/progress.h"
#include "exec/session.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "quantization/block_weights.h"
#include "store/spool.h"
#include "tuning/stored_blocks.h"

namespace detent::tuning {

/// Products that are solved from one pass, by the values that they read.
struct BlockStage {
  struct Input {
    std::string value;
    std::int64_t rows = 0;             // its last dimension
    std::vector<std::size_t> tensors;  // of the placement; the first product of each reads the value
  };
  std::vector<Input> inputs;
  int begin = 0;  // the first node of the stage; the model is cut before it
};

/// Stages in the order of the model, of which each takes at most so many bytes of Gram matrices. Weights that only
/// tables read are in none. Throws resource where there is too little for one of them.
std::vector<BlockStage> block_stages(const onnx::Model& model, const quantization::BlockPlacement& placement,
                                     std::uint64_t memory);

struct BlockSolving {
  WeightMethod method = WeightMethod::automatic;
  int threads = 0;
  store::Spool* spool = nullptr;    // needed for more than one stage
  std::filesystem::path directory;  // solutions are saved there, and found again by a resumed run
  Progress progress = {};
  std::stop_token stop = {};
};

struct SolvedBlocks {
  std::vector<std::optional<StoredBlocks>> tensors;  // as in the placement; unset: no product reads it
  std::uint64_t samples = 0;
};

/// Every eighth sample is held back from solving and decides which method is kept; of 2 to 7 samples the last is. The
/// result depends on the samples and their order alone. Throws what the runtime, the samples and the spool throw.
SolvedBlocks solve_blocks(const onnx::Model& model, const graph::ValueTypes& types,
                          const quantization::BlockPlacement& placement, const std::vector<BlockStage>& stages,
                          const exec::Runtime& runtime, data::SampleSource& source, const BlockSolving& options);

}  // namespace detent::tuning
