// The error that each number of bits would leave in a weight, found from some of its columns.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "detent/config.h"
#include "onnx/tensor.h"
#include "quantization/blocks/block_weights.h"
#include "solve/sweep/gram_sweep.h"

namespace detent::solve {

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
                                  const quantization::BlockPlacement& placement, std::span<const BitQuestion> questions,
                                  const std::vector<BlockStage>& stages, const exec::Runtime& runtime,
                                  data::SampleSource& source, WeightMethod method, const GramSweepOptions& options);

}  // namespace detent::solve
