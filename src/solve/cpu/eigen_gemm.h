// The same product for machines of different age.
#pragma once

#include <cstddef>

#include "solve/algebra/kernels.h"

namespace detent::solve {

using GemmFunction = void(const Gemm& shape, const float* a, std::size_t lda, const float* b, std::size_t ldb, float* c,
                          std::size_t ldc);

GemmFunction eigen_gemm;         // what every processor has
GemmFunction eigen_gemm_avx2;    // AVX2 and FMA
GemmFunction eigen_gemm_avx512;  // AVX-512 F, BW, DQ and VL

}  // namespace detent::solve
