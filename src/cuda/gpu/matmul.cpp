// Products by cuBLASLt. Row-major matrices are to it the transposes of column-major ones: C = A B is Cᵀ = Bᵀ Aᵀ, so A
// and B change places and everything else stays.
#include "cuda/matmul.h"

#include <algorithm>
#include <vector>

#include "cuda/gpu/check.h"
#include "solve/layers/device_memory.h"

namespace detent::cuda {

/// A library handle and its scratch, one for each device.
struct MatmulContext {
  cublasLtHandle_t handle = nullptr;
  DeviceArray<std::byte> scratch;

  explicit MatmulContext(Device& device)
      : scratch(device.memory(), solve::kMatmulScratch, "scratch of matrix products") {
    check(cublasLtCreate(&handle), "start");
  }
  MatmulContext(const MatmulContext&) = delete;
  MatmulContext& operator=(const MatmulContext&) = delete;
  ~MatmulContext() { cublasLtDestroy(handle); }
};

namespace {

MatmulContext& context_of(Device& device) {
  if (!device.libraries().matmuls) device.libraries().matmuls = std::make_shared<MatmulContext>(device);
  return *device.libraries().matmuls;
}

/// A matrix in memory as the library sees it: `rows` of so many elements lie one after the other.
class Layout {
 public:
  Layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t ld, std::int64_t batch,
         std::int64_t stride) {
    check(cublasLtMatrixLayoutCreate(&handle_, type, static_cast<std::uint64_t>(columns),
                                     static_cast<std::uint64_t>(rows), ld),
          "describe a matrix");
    const auto count = static_cast<std::int32_t>(batch);
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  ~Layout() { cublasLtMatrixLayoutDestroy(handle_); }

  cublasLtMatrixLayout_t handle() const noexcept { return handle_; }

 private:
  template <class T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, const T& value) {
    const cublasStatus_t status = cublasLtMatrixLayoutSetAttribute(handle_, attribute, &value, sizeof value);
    if (status != CUBLAS_STATUS_SUCCESS) cublasLtMatrixLayoutDestroy(handle_);  // no destructor runs after a throw
    check(status, "describe a batch");
  }

  cublasLtMatrixLayout_t handle_ = nullptr;
};

class Operation {
 public:
  Operation(const Product& p, cublasComputeType_t compute) {
    check(cublasLtMatmulDescCreate(&handle_, compute, CUDA_R_32F), "describe a product");
    // A and B have changed places.
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a);
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() { cublasLtMatmulDescDestroy(handle_); }

  cublasLtMatmulDesc_t handle() const noexcept { return handle_; }

 private:
  void set(cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const auto value = static_cast<std::int32_t>(transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    const cublasStatus_t status = cublasLtMatmulDescSetAttribute(handle_, attribute, &value, sizeof value);
    if (status != CUBLAS_STATUS_SUCCESS) cublasLtMatmulDescDestroy(handle_);
    check(status, "describe a product");
  }

  cublasLtMatmulDesc_t handle_ = nullptr;
};

class Preference {
 public:
  Preference() { check(cublasLtMatmulPreferenceCreate(&handle_), "describe a choice"); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  ~Preference() { cublasLtMatmulPreferenceDestroy(handle_); }

  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    check(cublasLtMatmulPreferenceSetAttribute(handle_, attribute, &value, sizeof value), "describe a choice");
  }
  cublasLtMatmulPreference_t handle() const noexcept { return handle_; }

 private:
  cublasLtMatmulPreference_t handle_ = nullptr;
};

/// The largest power of two up to 16 bytes that rows and batches begin at multiples of.
std::uint32_t alignment(std::int64_t ld, std::int64_t stride, std::int64_t batch, std::size_t element) {
  const auto bytes = static_cast<std::uint64_t>(ld) * element;
  const auto distance = batch > 1 ? static_cast<std::uint64_t>(stride) * element : 0;
  std::uint32_t align = 16;
  while (align > element && (bytes % align != 0 || distance % align != 0)) align /= 2;
  return align;
}

cublasComputeType_t compute_type(DevicePrecision precision) {
  return precision == DevicePrecision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

}  // namespace

struct Matmul::Plan {
  Device& device;
  MatmulContext& context;
  bool narrow;
  Operation operation;
  Layout first, second, result;  // as the library counts them: B, A, C
  cublasLtMatmulAlgo_t algorithm{};

  Plan(Device& on, const Product& p, DevicePrecision precision, int choice)
      : device(on),
        context(context_of(on)),
        narrow(precision == DevicePrecision::bfloat16),
        operation(p, compute_type(precision)),
        first(type(), p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb, p.batch, p.stride_b),
        second(type(), p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda, p.batch, p.stride_a),
        result(CUDA_R_32F, p.m, p.n, p.ldc, p.batch, p.stride_c) {
    choose(p, choice);
  }

  cudaDataType_t type() const noexcept { return narrow ? CUDA_R_16BF : CUDA_R_32F; }

  void choose(const Product& p, int choice) {
    const std::size_t element = narrow ? sizeof(Bfloat16) : sizeof(float);
    Preference preference;
    preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(solve::kMatmulScratch));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.ldb, p.stride_b, p.batch, element));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.lda, p.stride_a, p.batch, element));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.ldc, p.stride_c, p.batch, sizeof(float)));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.ldc, p.stride_c, p.batch, sizeof(float)));
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(choice) + 1);
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        context.handle, operation.handle(), first.handle(), second.handle(), result.handle(), result.handle(),
        preference.handle(), static_cast<int>(found.size()), found.data(), &count);
    check(status, "find a way to multiply");
    check(count > choice ? found.back().state : CUBLAS_STATUS_NOT_SUPPORTED, "find a way to multiply");
    algorithm = found.back().algo;
  }

  void run(const void* a, const void* b, float* c, float alpha, float beta) const {
    check(cublasLtMatmul(context.handle, operation.handle(), &alpha, b, first.handle(), a, second.handle(), &beta, c,
                         result.handle(), c, result.handle(), &algorithm, context.scratch.data(),
                         context.scratch.size(), device.stream().handle()),
          "multiply matrices");
  }
};

Matmul::Matmul(Device& device, const Product& product, DevicePrecision precision, int choice)
    : plan_(std::make_unique<Plan>(device, product, precision, choice)) {}
Matmul::Matmul(Matmul&&) noexcept = default;
Matmul& Matmul::operator=(Matmul&&) noexcept = default;
Matmul::~Matmul() = default;

void Matmul::run(const float* a, const float* b, float* c, float alpha, float beta) const {
  if (plan_->narrow) throw internal_error("a product of bfloat16 was given floats");
  plan_->run(a, b, c, alpha, beta);
}

void Matmul::run(const Bfloat16* a, const Bfloat16* b, float* c, float alpha, float beta) const {
  if (!plan_->narrow) throw internal_error("a product of floats was given bfloat16");
  plan_->run(a, b, c, alpha, beta);
}

}  // namespace detent::cuda
