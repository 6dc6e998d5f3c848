// Eigen's matrix product. This file is compiled once for each vector unit, each time with another name for the function
// and for Eigen's namespace, so that the linker mixes up no two of them.
#include "solve/cpu/eigen_gemm.h"

#include <Eigen/Core>

namespace detent::solve {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stride = Eigen::OuterStride<>;
using Given = Eigen::Map<const Matrix, Eigen::Unaligned, Stride>;
using Result = Eigen::Map<Matrix, Eigen::Unaligned, Stride>;

Given given(const float* data, bool transposed, Eigen::Index rows, Eigen::Index columns, std::size_t leading) {
  const Stride stride(static_cast<Eigen::Index>(leading));
  return transposed ? Given(data, columns, rows, stride) : Given(data, rows, columns, stride);
}

}  // namespace

void DETENT_EIGEN_GEMM(const Gemm& shape, const float* a, std::size_t lda, const float* b, std::size_t ldb, float* c,
                       std::size_t ldc) {
  const Given left = given(a, shape.transpose_a, shape.m, shape.k, lda);
  const Given right = given(b, shape.transpose_b, shape.k, shape.n, ldb);
  Result result(c, shape.m, shape.n, Stride(static_cast<Eigen::Index>(ldc)));
  if (shape.beta == 0)
    result.setZero();
  else if (shape.beta != 1)
    result *= shape.beta;
  const auto add = [&](const auto& first, const auto& second) { result.noalias() += shape.alpha * first * second; };
  if (shape.transpose_a && shape.transpose_b)
    add(left.transpose(), right.transpose());
  else if (shape.transpose_a)
    add(left.transpose(), right);
  else if (shape.transpose_b)
    add(left, right.transpose());
  else
    add(left, right);
}

}  // namespace detent::solve
