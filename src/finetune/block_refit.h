// Scales of blocks that suit integers that are there already.
#pragma once

#include <cstddef>
#include <span>

#include "finetune/block_error.h"
#include "finetune/kernels.h"
#include "quantization/blocks.h"

namespace detent::finetune {

/// Gives each column the scales that are best for its integers and zero points, by least squares over all its blocks:
/// with Ŵ = Σ s_b m_b the error (Ŵ − W) A (Ŵ − W)ᵀ is a quadratic in the scales. A is the Gram matrix, damped by a
/// share of its mean diagonal. A column whose error does not fall keeps what it has, and so does one that would get a
/// scale of another sign.
///
/// Memory: for each thread three rows and blocks² / 2 floats of kRefitTogether columns. Threads change nothing, nor how
/// columns are divided into calls, so long as each but the last has a multiple of kRefitTogether.
void refit_scales(const Gram& gram, const Damping& damping, std::span<const float> columns,
                  quantization::BlockWeight& weight, const Kernels& kernels, std::size_t threads);

inline constexpr std::size_t kRefitTogether = 64;

}  // namespace detent::finetune
