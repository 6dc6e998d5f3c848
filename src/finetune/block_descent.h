// Better integers for weights in blocks, one after another.
#pragma once

#include <cstddef>
#include <span>

#include "finetune/block_error.h"
#include "finetune/kernels.h"
#include "quantization/blocks.h"

namespace detent::finetune {

/// Sweeps over the weights of each column, each of which gets the integer that is best while all others stay, until
/// none changes or `sweeps` are done. The error by the matrix of Damping does not grow. With `keep_zeros`, weights that
/// are 0 keep their integers.
///
/// Memory: for each thread three rows of kColumnsTogether columns. Threads change nothing, nor how columns are divided
/// into calls, so long as each but the last has a multiple of kColumnsTogether.
void descend(const Gram& gram, const Damping& damping, std::span<const float> columns,
             quantization::BlockWeight& weight, std::size_t sweeps, bool keep_zeros, const Kernels& kernels,
             std::size_t threads);

}  // namespace detent::finetune
