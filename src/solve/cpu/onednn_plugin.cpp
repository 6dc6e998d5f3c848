// The CPU's kernels in terms of oneDNN: a library of its own.
#include <fmt/format.h>
#include <omp.h>

#include <oneapi/dnnl/dnnl.h>

#include "base/error.h"
#include "solve/algebra/kernels.h"

namespace detent::solve {
namespace {

/// oneDNN would start threads of its own; ours each run it alone. The setting belongs to the calling thread.
void stay_on_this_thread() noexcept { omp_set_num_threads(1); }

class DnnlKernels final : public Kernels {
 public:
  void gemm(const Gemm& shape, const float* a, std::size_t lda, const float* b, std::size_t ldb, float* c,
            std::size_t ldc) const override {
    if (shape.m == 0 || shape.n == 0) return;
    stay_on_this_thread();
    const auto dim = [](std::size_t leading) { return static_cast<dnnl_dim_t>(leading); };
    const auto status = dnnl_sgemm(shape.transpose_a ? 'T' : 'N', shape.transpose_b ? 'T' : 'N', shape.m, shape.n,
                                   shape.k, shape.alpha, a, dim(lda), b, dim(ldb), shape.beta, c, dim(ldc));
    if (status != dnnl_success)
      throw device_error(fmt::format("oneDNN failed to multiply matrices: status {}", static_cast<int>(status)));
  }
};

}  // namespace
}  // namespace detent::solve

extern "C" __attribute__((visibility("default"))) const detent::solve::Kernels* detent_kernels(int version) {
  static const detent::solve::DnnlKernels kernels;
  return version == detent::solve::kKernelsVersion ? &kernels : nullptr;
}
