// The blocks of a weight, found stripe by stripe when they are written: the weight is never in memory as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "onnx/tensor.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/blocks/blocks.h"

namespace detent::quantization {

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

/// The solution with the scales of each column multiplied by its factor; as it is where there are no factors.
BlockSolver scaled(BlockSolver solve, const std::vector<float>& factors);

}  // namespace detent::quantization
