#include "solve/algebra/symmetric_matrix.h"

#include <algorithm>

#include "base/parallel.h"

namespace detent::solve {
namespace {

constexpr std::size_t kRowsTogether = 256;  // of products
constexpr std::size_t kBlock = 64;          // on a side, so that reads and writes stay in the cache
constexpr std::size_t kWorthThreads = 256;  // rows

}  // namespace

void multiply_rows(const float* rows, std::size_t n, std::size_t size, float* out, std::size_t leading,
                   const Kernels& kernels, std::size_t threads) {
  parallel_for((n + kRowsTogether - 1) / kRowsTogether, threads, [&](std::size_t piece) {
    const std::size_t first = piece * kRowsTogether, last = std::min(first + kRowsTogether, n);
    kernels.gemm(gemm_of(last - first, last, size, true), rows + first * size, size, rows, size, out + first * leading,
                 leading);
  });
}

void mirror(float* matrix, std::size_t n, std::size_t threads) {
  parallel_for((n + kBlock - 1) / kBlock, n > kWorthThreads ? threads : 1, [&](std::size_t block) {
    const std::size_t first = block * kBlock, last = std::min(first + kBlock, n);
    for (std::size_t j = 0; j < last; j += kBlock) {
      for (std::size_t r = first; r < last; ++r) {
        for (std::size_t c = j; c < std::min(j + kBlock, r); ++c) matrix[c * n + r] = matrix[r * n + c];
      }
    }
  });
}

}  // namespace detent::solve
