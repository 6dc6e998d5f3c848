// One weight in blocks, solved stripe by stripe from the sums over what its products read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "detent/config.h"
#include "onnx/tensor.h"
#include "quantization/blocks/block_stream.h"
#include "quantization/blocks/blocks.h"
#include "shim/ranks.h"
#include "solve/algebra/kernels.h"
#include "solve/blocks/block_solver.h"
#include "solve/sweep/gram_sweep.h"
#include "solve/sweep/solved_layers.h"

namespace detent::solve {

/// How a weight was solved.
struct BlockVerdict {
  std::string method;                      // that most columns keep
  double output_error = 0;                 // of the product on samples: sum of squared errors over the sum of squares
  std::optional<double> dense_error = {};  // with sparsity, the same without it
};

/// A solution on disk. Cheap to copy.
class StoredBlocks {
 public:
  /// What is in the file for a weight of this shape. Throws bad_input where it is not as it was written.
  StoredBlocks(const std::filesystem::path& path, const quantization::BlockTensor& shape);

  const BlockVerdict& verdict() const noexcept { return verdict_; }
  const quantization::BlockTensor& shape() const noexcept { return shape_; }
  quantization::BlockWeight columns(std::int64_t first, std::int64_t count) const;
  /// Gives back what was found, whatever the columns hold.
  quantization::BlockSolver solver() const;

 private:
  SealedBytes stored_;
  quantization::BlockTensor shape_;
  BlockVerdict verdict_;
};

/// Writes one, stripe by stripe in the order of columns.
class BlockWriter {
 public:
  BlockWriter(const std::filesystem::path& path, const quantization::BlockTensor& shape) : file_(path), shape_(shape) {}
  void add(const quantization::BlockWeight& stripe);
  void finish(const BlockVerdict& verdict);

 private:
  SealedFile file_;
  quantization::BlockTensor shape_;
  std::vector<float> scales_;
  std::vector<std::uint8_t> zero_points_;
};

/// What stands for the method where something is tried out: the other rungs of automatic matter to single columns.
BlockMethod method_of_trials(WeightMethod method);

struct WeightSolvingOptions {
  WeightMethod method = WeightMethod::automatic;
  WeightSparsity sparsity = WeightSparsity::none;
  const Kernels& kernels;
  std::size_t threads = 1;
  std::optional<std::uint64_t> memory_budget = {};  // of this process; one piece of columns is worked on in any case
  std::stop_token stop = {};
};

/// Writes the solution's columns to `writer`, but does not finish it. With sparsity, weights that a table reads as well
/// stay dense. Threads and memory change nothing.
BlockVerdict solve_weight(const onnx::Tensor& tensor, const quantization::BlockTensor& shape, const InputGrams& grams,
                          const WeightSolvingOptions& options, BlockWriter& writer);

/// What solving takes for each kColumnsTogether columns that it has at a time, on a thread and beside it.
std::uint64_t memory_of_piece(std::int64_t rows);

/// Matrices of rows² floats that solving a weight takes beside the sums.
constexpr std::uint64_t matrices_beside_sums(WeightSparsity sparsity) {
  return sparsity == WeightSparsity::none ? 1 : 2;
}

// Blocks of weights that need no samples, found by several processes: each takes a share of all columns.

/// The blocks of a weight in pieces of its columns, each in a file.
struct BlocksInPieces {
  std::vector<std::pair<std::int64_t, StoredBlocks>> pieces;  // with their first columns, ascending; empty: not shared

  /// Gives back what was found, whatever the columns hold.
  quantization::BlockSolver solver() const;
};

/// Collective: what each stream finds, in the order of `streams`, on rank 0; nothing elsewhere. Those whose byte
/// in `wanted` is 0 are left out. Files are in `folder` on each rank, and may go once this has returned.
std::vector<BlocksInPieces> share_blocks(const std::vector<quantization::BlockStream>& streams,
                                         std::span<const std::byte> wanted, shim::Ranks& ranks,
                                         const std::filesystem::path& folder, const std::stop_token& stop);

}  // namespace detent::solve
