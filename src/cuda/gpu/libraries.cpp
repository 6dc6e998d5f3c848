// Products by cuBLASLt. Row-major matrices are to it the transposes of column-major ones: C = A B is Cᵀ = Bᵀ Aᵀ, so A
// and B change places and everything else stays.
#include <vector>

#include "cuda/device.h"
#include "cuda/gpu/check.h"
#include "cuda/layer_pass.h"
#include "solve/layers/layer_solver.h"

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

MatmulContext& matmul_context(Device& device) {
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

class MatmulOperation {
 public:
  MatmulOperation(const Product& p, cublasComputeType_t compute) {
    check(cublasLtMatmulDescCreate(&handle_, compute, CUDA_R_32F), "describe a product");
    // A and B have changed places.
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a);
  }
  MatmulOperation(const MatmulOperation&) = delete;
  MatmulOperation& operator=(const MatmulOperation&) = delete;
  ~MatmulOperation() { cublasLtMatmulDescDestroy(handle_); }

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
  MatmulOperation operation;
  Layout first, second, result;  // as the library counts them: B, A, C
  cublasLtMatmulAlgo_t algorithm{};

  Plan(Device& on, const Product& p, DevicePrecision precision, int choice)
      : device(on),
        context(matmul_context(on)),
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

// Convolutions by cuDNN's legacy interface, which compiles in a moment. A transposed convolution is the gradient of a
// plain one by its input: what is input there is output here, and filters have the plain one's shape.

struct ConvolutionContext {
  cudnnHandle_t handle = nullptr;
  DeviceArray<std::byte> scratch;

  explicit ConvolutionContext(Device& device)
      : scratch(device.memory(), solve::kConvolutionScratch, "scratch of convolutions") {
    check(cudnnCreate(&handle), "start");
    const cudnnStatus_t status = cudnnSetStream(handle, device.stream().handle());
    if (status != CUDNN_STATUS_SUCCESS) cudnnDestroy(handle);  // no destructor runs after a throw
    check(status, "use a stream");
  }
  ConvolutionContext(const ConvolutionContext&) = delete;
  ConvolutionContext& operator=(const ConvolutionContext&) = delete;
  ~ConvolutionContext() { cudnnDestroy(handle); }
};

namespace {

using solve::LayerGeometry;
using solve::LayerKind;
using Dims = std::vector<int>;

ConvolutionContext& convolution_context(Device& device) {
  if (!device.libraries().convolutions) device.libraries().convolutions = std::make_shared<ConvolutionContext>(device);
  return *device.libraries().convolutions;
}

int checked_int(std::int64_t value) {
  if (value < 0 || value > 0x7fffffff)
    throw resource_error("a convolution's shape is beyond what cuDNN counts", "give --device cpu");
  return static_cast<int>(value);
}

/// The library knows two and three axes: a single one gets another of one element before it.
Dims with_axes(std::vector<std::int64_t> dims, std::size_t leading, std::int64_t fill) {
  if (dims.size() - leading == 1) dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(leading), fill);
  Dims made;
  for (const std::int64_t d : dims) made.push_back(checked_int(d));
  return made;
}

class Tensor {
 public:
  /// `channels`: of the tensor in memory, in nchw; `dims` may have fewer.
  Tensor(const Dims& dims, int channels, bool last) {
    check(cudnnCreateTensorDescriptor(&handle_), "describe a tensor");
    const auto n = static_cast<int>(dims.size());
    Dims strides(dims.size());
    int positions = 1;
    for (std::size_t a = dims.size() - 1; a >= 2; --a) {
      strides[a] = positions * (last ? dims[1] : 1);
      positions = checked_int(static_cast<std::int64_t>(positions) * dims[a]);
    }
    strides[1] = last ? 1 : positions;
    strides[0] = checked_int(static_cast<std::int64_t>(positions) * (last ? dims[1] : channels));
    const cudnnStatus_t status = cudnnSetTensorNdDescriptor(handle_, CUDNN_DATA_FLOAT, n, dims.data(), strides.data());
    if (status != CUDNN_STATUS_SUCCESS) cudnnDestroyTensorDescriptor(handle_);
    check(status, "describe a tensor");
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { cudnnDestroyTensorDescriptor(handle_); }
  cudnnTensorDescriptor_t handle() const noexcept { return handle_; }

 private:
  cudnnTensorDescriptor_t handle_ = nullptr;
};

class Filter {
 public:
  Filter(const Dims& dims, bool last) {
    check(cudnnCreateFilterDescriptor(&handle_), "describe a filter");
    const cudnnStatus_t status =
        cudnnSetFilterNdDescriptor(handle_, CUDNN_DATA_FLOAT, last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                                   static_cast<int>(dims.size()), dims.data());
    if (status != CUDNN_STATUS_SUCCESS) cudnnDestroyFilterDescriptor(handle_);
    check(status, "describe a filter");
  }
  Filter(const Filter&) = delete;
  Filter& operator=(const Filter&) = delete;
  ~Filter() { cudnnDestroyFilterDescriptor(handle_); }
  cudnnFilterDescriptor_t handle() const noexcept { return handle_; }

 private:
  cudnnFilterDescriptor_t handle_ = nullptr;
};

class ConvolutionOperation {
 public:
  ConvolutionOperation(const LayerGeometry& g, cudnnMathType_t math) {
    const Dims pads = with_axes(g.pads_begin, 0, 0), strides = with_axes(g.strides, 0, 1);
    const Dims dilations = with_axes(g.dilations, 0, 1);
    check(cudnnCreateConvolutionDescriptor(&handle_), "describe a convolution");
    cudnnStatus_t status =
        cudnnSetConvolutionNdDescriptor(handle_, static_cast<int>(pads.size()), pads.data(), strides.data(),
                                        dilations.data(), CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnSetConvolutionGroupCount(handle_, checked_int(g.groups));
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnSetConvolutionMathType(handle_, math);
    if (status != CUDNN_STATUS_SUCCESS) cudnnDestroyConvolutionDescriptor(handle_);
    check(status, "describe a convolution");
  }
  ConvolutionOperation(const ConvolutionOperation&) = delete;
  ConvolutionOperation& operator=(const ConvolutionOperation&) = delete;
  ~ConvolutionOperation() { cudnnDestroyConvolutionDescriptor(handle_); }
  cudnnConvolutionDescriptor_t handle() const noexcept { return handle_; }

 private:
  cudnnConvolutionDescriptor_t handle_ = nullptr;
};

/// The fastest by the library's own table that gives the same bits each time, in numbers no coarser than asked for and
/// within the scratch. `size_of(algorithm, &bytes)` asks what it takes.
template <class Found, class SizeOf>
auto pick(const std::vector<Found>& found, cudnnMathType_t math, const char* doing, const SizeOf& size_of) {
  for (const Found& one : found) {
    if (one.status != CUDNN_STATUS_SUCCESS || one.determinism != CUDNN_DETERMINISTIC) continue;
    // Others run in what the descriptor says; these only in coarser numbers.
    const bool coarser = math == CUDNN_FMA_MATH && (one.mathType == CUDNN_TENSOR_OP_MATH ||
                                                    one.mathType == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
    std::size_t bytes = 0;
    if (coarser || size_of(one.algo, &bytes) != CUDNN_STATUS_SUCCESS || bytes > solve::kConvolutionScratch) continue;
    return one.algo;
  }
  check(CUDNN_STATUS_NOT_SUPPORTED, doing);
  return found.at(0).algo;  // check() has thrown
}

}  // namespace

struct Convolution::Plan {
  ConvolutionContext& context;
  bool transposed;
  cudnnMathType_t math;
  Tensor spread, steps;  // what a plain convolution reads and writes
  Filter filter;
  ConvolutionOperation operation;
  cudnnConvolutionFwdAlgo_t forward{};
  cudnnConvolutionBwdDataAlgo_t backward_data{};
  cudnnConvolutionBwdFilterAlgo_t backward_filter{};

  Plan(Device& device, const LayerGeometry& g, const std::vector<std::int64_t>& input, int channels, bool last,
       DevicePrecision precision)
      : context(convolution_context(device)),
        transposed(g.kind == LayerKind::transposed),
        math(precision == DevicePrecision::float32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH),
        spread(dims_of(transposed ? g.output_shape(input) : input), transposed ? checked_int(g.outputs) : channels,
               last),
        steps(dims_of(transposed ? input : g.output_shape(input)), transposed ? channels : checked_int(g.outputs),
              last),
        filter(filter_dims(g), last),
        operation(g, math) {
    if (transposed) {
      choose_backward_data();
    } else {
      choose_forward();
    }
    choose_backward_filter();
  }

  static Dims dims_of(const std::vector<std::int64_t>& shape) { return with_axes(shape, 2, 1); }
  static Dims filter_dims(const LayerGeometry& g) {
    const bool is_transposed = g.kind == LayerKind::transposed;
    std::vector<std::int64_t> dims{is_transposed ? g.inputs : g.outputs,
                                   (is_transposed ? g.outputs : g.inputs) / g.groups};
    dims.insert(dims.end(), g.kernel.begin(), g.kernel.end());
    return with_axes(dims, 2, 1);
  }

  void choose_forward() {
    std::vector<cudnnConvolutionFwdAlgoPerf_t> found(CUDNN_CONVOLUTION_FWD_ALGO_COUNT);
    int count = 0;
    check(cudnnGetConvolutionForwardAlgorithm_v7(context.handle, spread.handle(), filter.handle(), operation.handle(),
                                                 steps.handle(), static_cast<int>(found.size()), &count, found.data()),
          "choose a convolution");
    found.resize(static_cast<std::size_t>(count));
    forward = pick(found, math, "choose a convolution", [&](auto algorithm, std::size_t* bytes) {
      return cudnnGetConvolutionForwardWorkspaceSize(context.handle, spread.handle(), filter.handle(),
                                                     operation.handle(), steps.handle(), algorithm, bytes);
    });
  }

  void choose_backward_data() {
    std::vector<cudnnConvolutionBwdDataAlgoPerf_t> found(CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT);
    int count = 0;
    check(cudnnGetConvolutionBackwardDataAlgorithm_v7(context.handle, filter.handle(), steps.handle(),
                                                      operation.handle(), spread.handle(),
                                                      static_cast<int>(found.size()), &count, found.data()),
          "choose a transposed convolution");
    found.resize(static_cast<std::size_t>(count));
    backward_data = pick(found, math, "choose a transposed convolution", [&](auto algorithm, std::size_t* bytes) {
      return cudnnGetConvolutionBackwardDataWorkspaceSize(context.handle, filter.handle(), steps.handle(),
                                                          operation.handle(), spread.handle(), algorithm, bytes);
    });
  }

  void choose_backward_filter() {
    std::vector<cudnnConvolutionBwdFilterAlgoPerf_t> found(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT);
    int count = 0;
    check(cudnnGetConvolutionBackwardFilterAlgorithm_v7(context.handle, spread.handle(), steps.handle(),
                                                        operation.handle(), filter.handle(),
                                                        static_cast<int>(found.size()), &count, found.data()),
          "choose a convolution's gradient");
    found.resize(static_cast<std::size_t>(count));
    backward_filter = pick(found, math, "choose a convolution's gradient", [&](auto algorithm, std::size_t* bytes) {
      return cudnnGetConvolutionBackwardFilterWorkspaceSize(context.handle, spread.handle(), steps.handle(),
                                                            operation.handle(), filter.handle(), algorithm, bytes);
    });
  }
};

Convolution::Convolution(Device& device, const LayerGeometry& geometry, const std::vector<std::int64_t>& input_shape,
                         std::int64_t channels, DeviceLayout layout, DevicePrecision precision)
    : plan_(std::make_unique<Plan>(device, geometry, input_shape, checked_int(channels), layout == DeviceLayout::nhwc,
                                   precision)) {}
Convolution::Convolution(Convolution&&) noexcept = default;
Convolution& Convolution::operator=(Convolution&&) noexcept = default;
Convolution::~Convolution() = default;

void Convolution::forward(const float* input, const float* filter, float* output) const {
  const float one = 1, zero = 0;
  const Plan& p = *plan_;
  const ConvolutionContext& c = p.context;
  if (p.transposed) {
    check(cudnnConvolutionBackwardData(c.handle, &one, p.filter.handle(), filter, p.steps.handle(), input,
                                       p.operation.handle(), p.backward_data, c.scratch.data(), c.scratch.size(), &zero,
                                       p.spread.handle(), output),
          "run a transposed convolution");
    return;
  }
  check(
      cudnnConvolutionForward(c.handle, &one, p.spread.handle(), input, p.filter.handle(), filter, p.operation.handle(),
                              p.forward, c.scratch.data(), c.scratch.size(), &zero, p.steps.handle(), output),
      "run a convolution");
}

void Convolution::backward_filter(const float* input, const float* output_gradient, float* filter_gradient,
                                  float beta) const {
  const float one = 1;
  const Plan& p = *plan_;
  const ConvolutionContext& c = p.context;
  const float* const read = p.transposed ? output_gradient : input;
  const float* const written = p.transposed ? input : output_gradient;
  check(cudnnConvolutionBackwardFilter(c.handle, &one, p.spread.handle(), read, p.steps.handle(), written,
                                       p.operation.handle(), p.backward_filter, c.scratch.data(), c.scratch.size(),
                                       &beta, p.filter.handle(), filter_gradient),
        "run a convolution's gradient");
}

}  // namespace detent::cuda
