// Weights in blocks, solved from what their products read on samples: one pass over the float model, in which each
// weight is solved as soon as all samples have gone by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "detent/config.h"
#include "onnx/model.h"
#include "onnx/tensor.h"
#include "quantization/blocks/block_weights.h"
#include "shim/ranks.h"
#include "solve/sweep/gram_sweep.h"
#include "solve/sweep/weight_solving.h"

namespace detent::solve {

/// Factors for what products read, chosen by the sums over samples and kept where they help samples that are held back.
struct InputScaling {
  std::vector<float> factors;  // that rows of weights are multiplied by; empty: none help
  double exponent = 0;         // of AWQ: factors are the power of the inputs to half of it
};

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
                          const quantization::Placement& placement, const std::vector<BlockStage>& stages,
                          const exec::Runtime& runtime, data::SampleSource& source, const BlockSolving& options);

/// Shares: sums of squared errors over sums of squares. Of a product's results where there are samples, else of the
/// weight's values.
struct BitErrors {
  std::map<int, double> of_bits;
  double nearest = 0;  // of all columns, rounded to the nearest with the bits of the tensor's format
};

/// What of a weight is measured: the bits that it may get.
struct BitQuestion {
  std::size_t tensor = 0;  // of the placement
  std::vector<int> bits;
};

/// By the values themselves. The method is nearest or search. Columns are those of representative_columns().
BitErrors bit_errors(const onnx::Tensor& tensor, const quantization::BlockTensor& shape, std::span<const int> bits,
                     WeightMethod method, std::size_t threads);

/// By what the products of the stages read on samples, judged on those that are held back; the weights are solved by
/// the method. Asks in the order of `questions`; entries of tensors that are in no stage stay empty.
std::vector<BitErrors> bit_errors(const onnx::Model& model, const graph::ValueTypes& types,
                                  const quantization::Placement& placement, std::span<const BitQuestion> questions,
                                  const std::vector<BlockStage>& stages, const exec::Runtime& runtime,
                                  data::SampleSource& source, WeightMethod method, const GramSweepOptions& options);

}  // namespace detent::solve
