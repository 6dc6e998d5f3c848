// Weights in blocks, one after another: their errors, and the bits of each that these errors ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "onnx/tensor.h"
#include "quantization/blocks/blocks.h"

namespace detent::quantization {

// The blocks of a weight, found stripe by stripe when they are written: the weight is never in memory as a whole.

/// Finds the blocks of whole columns, which follow one another; `first` is the number of the first of them. The result
/// for a column must not depend on those beside it. May be called from several threads.
using BlockSolver = std::function<BlockWeight(std::span<const float> columns, std::int64_t first)>;

/// Sums over the elements of a weight: of their squares, and of the squared differences to what is stored.
struct BlockErrors {
  double squares = 0;
  double errors = 0;
};

/// The columns [first, last) of a matrix of floats of any type, times its factors, one after another. Pages of mapped
/// files are given back. Throws bad_input naming the tensor for NaN and infinite values.
void read_columns(const onnx::Tensor& tensor, const BlockTensor& shape, std::int64_t first, std::int64_t last,
                  std::span<float> columns);

/// The largest absolute value of a matrix of floats of any type. Throws as read_columns() does.
float largest_value(const onnx::Tensor& tensor, const BlockTensor& shape);

/// Gives scales values that floats of the type have, other than 0. Where that changes one by more than this share, the
/// nearest integers of its block are found anew. (Scales of float16 below 6e-5 have few bits.)
void round_scales(BlockWeight& found, std::span<const float> columns, onnx::DataType type, float tolerance);

class BlockStream {
 public:
  /// `threads` work on a stripe.
  BlockStream(onnx::Tensor tensor, BlockTensor shape, BlockSolver solve, std::size_t threads)
      : tensor_(std::move(tensor)), shape_(std::move(shape)), solve_(std::move(solve)), threads_(threads) {}

  const BlockTensor& shape() const noexcept { return shape_; }
  const onnx::Tensor& tensor() const noexcept { return tensor_; }
  /// Calls `fn` with stripes of columns, from the first to the last. Each holds about 2 Mi values; eight stripes are
  /// worked on at a time. Scales have values of the type of the weight.
  BlockErrors for_each(const std::function<void(std::int64_t first, const BlockWeight& stripe)>& fn) const {
    return for_each(0, shape_.columns, fn);
  }
  /// The columns [begin, end) alone, which hold the same as among all.
  BlockErrors for_each(std::int64_t begin, std::int64_t end,
                       const std::function<void(std::int64_t first, const BlockWeight& stripe)>& fn) const;

 private:
  onnx::Tensor tensor_;
  BlockTensor shape_;
  BlockSolver solve_;
  std::size_t threads_;
};

/// Told of each weight when its integers have been written: its position, and its errors.
using BlocksWritten = std::function<void(std::size_t weight, const BlockErrors& errors)>;

/// The weights of a model that are stored in blocks, in the order of their first readers.
struct BlockAssignment {
  std::vector<BlockStream> weights = {};
  WeightForm form = WeightForm::matmul_nbits;
  int accuracy_level = 0;  // as of WeightsOnlyConfig
  BlocksWritten written = {};
};

/// The solution with the scales of each column multiplied by its factor; as it is where there are no factors.
BlockSolver scaled(BlockSolver solve, const std::vector<float>& factors);

// How many bits each weight gets so that the model keeps within a size and its error is small.

/// What weights that are decided together may become.
struct BitOption {
  int bits = 4;            // 0: float
  std::int64_t bytes = 0;  // beyond those of the float model: usually negative
  double error = 0;        // that it adds to the model's
};

/// One option of each group, so that their bytes are at most `budget` and the sum of errors is small; nullopt where
/// even the smallest are too large. Each group has an option at least, and 256 at most.
///
/// This is a knapsack. It is solved by a table of the least error by bytes, which are rounded up to a few thousand
/// units, and along the lower convex hulls of the groups' options, with exact bytes, as its Lagrangian relaxation has
/// it (Shoham and Gersho 1988, doi:10.1109/29.90373). What is left over goes to single changes that still fit, the
/// largest gain first; the better of both counts. Equal gains go by the order of groups. Memory: 16 MiB for the table.
std::optional<std::vector<std::size_t>> choose_bits(std::span<const std::vector<BitOption>> groups,
                                                    std::int64_t budget);

// The smallest size whose loss is small enough, in few measurements.

struct SizeTrial {
  std::uint64_t size = 0;
  double loss = 0;  // 0: none
};

struct SizeSearch {
  std::uint64_t smallest = 0;  // that can be asked for
  std::uint64_t largest = 0;   // at which nothing is lost, and nothing gained
  std::uint64_t first = 0;     // to be tried first
  double most_loss = 0;
  int most_trials = 6;
};

/// The smallest of the tried sizes whose loss is at most `most_loss`; nullopt where there is none. `expected` is cheap,
/// falls with the size, and is taken to be in proportion to `measured`: each trial tells the factor anew. The search
/// ends within 1 % of a size that failed. `trials` gets what was measured, in order.
std::optional<std::uint64_t> smallest_size(const SizeSearch& search,
                                           const std::function<double(std::uint64_t)>& expected,
                                           const std::function<double(std::uint64_t)>& measured,
                                           std::vector<SizeTrial>& trials);

}  // namespace detent::quantization
