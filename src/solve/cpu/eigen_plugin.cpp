// The CPU's kernels in terms of Eigen, where oneDNN is not installed: smaller, and built in a minute.
#include "solve/cpu/eigen_gemm.h"

namespace detent::solve {
namespace {

GemmFunction* fastest() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return eigen_gemm_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return eigen_gemm_avx2;
#endif
  return eigen_gemm;
}

class EigenKernels final : public Kernels {
 public:
  void gemm(const Gemm& shape, const float* a, std::size_t lda, const float* b, std::size_t ldb, float* c,
            std::size_t ldc) const override {
    if (shape.m == 0 || shape.n == 0) return;
    gemm_(shape, a, lda, b, ldb, c, ldc);
  }

 private:
  GemmFunction* gemm_ = fastest();
};

}  // namespace
}  // namespace detent::solve

extern "C" __attribute__((visibility("default"))) const detent::solve::Kernels* detent_kernels(int version) {
  static const detent::solve::EigenKernels kernels;
  return version == detent::solve::kKernelsVersion ? &kernels : nullptr;
}
