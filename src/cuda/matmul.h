// Matrix products on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/bfloat16.h"
#include "cuda/device.h"
#include "detent/device.h"

namespace detent::cuda {

/// Row-major: C[i] = alpha · op(A[i]) · op(B[i]) + beta · C[i] for i in [0, batch), op(A) of m × k and op(B) of k × n.
/// Lengths of rows and distances of batches are in elements. Addresses are aligned as far as those are, up to 16 bytes.
struct Product {
  bool transpose_a = false;
  bool transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  std::int64_t batch = 1;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
};

/// One product, with the way chosen in which the device computes it: the same one each time on the same kind of device.
/// In float32 and TF32, A and B are floats; in bfloat16 they are Bfloat16. C and all sums are float32.
class Matmul {
 public:
  /// `device` must outlive it. `choice`: 0 for the way that the library puts first, the others are for measuring how
  /// good that is. Throws device, also where the library has fewer ways.
  Matmul(Device& device, const Product& product, DevicePrecision precision, int choice = 0);
  Matmul(Matmul&&) noexcept;
  Matmul& operator=(Matmul&&) noexcept;
  ~Matmul();

  /// Queued in the device's stream. Throws internal for elements of the other kind.
  void run(const float* a, const float* b, float* c, float alpha = 1, float beta = 0) const;
  void run(const Bfloat16* a, const Bfloat16* b, float* c, float alpha = 1, float beta = 0) const;

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace detent::cuda
