// Symmetric matrices, of which the lower half is made.
#pragma once

#include <cstddef>

#include "solve/algebra/kernels.h"

namespace detent::solve {

/// The lower half of A Aᵀ for n rows of `size` values, into a matrix whose rows are `leading` apart.
void multiply_rows(const float* rows, std::size_t n, std::size_t size, float* out, std::size_t leading,
                   const Kernels& kernels, std::size_t threads);
/// Makes the upper half of an n × n matrix what the lower is.
void mirror(float* matrix, std::size_t n, std::size_t threads);

}  // namespace detent::solve
