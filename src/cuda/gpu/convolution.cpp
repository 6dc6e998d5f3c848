// Convolutions by cuDNN's legacy interface, which compiles in a moment. A transposed convolution is the gradient of a
// plain one by its input: what is input there is output here, and filters have the plain one's shape.
#include "cuda/convolution.h"

#include <algorithm>
#include <array>
#include <vector>

#include "cuda/gpu/check.h"
#include "solve/layers/device_memory.h"

namespace detent::cuda {

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

ConvolutionContext& context_of(Device& device) {
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

class Operation {
 public:
  Operation(const LayerGeometry& g, cudnnMathType_t math) {
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
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() { cudnnDestroyConvolutionDescriptor(handle_); }
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
  Operation operation;
  cudnnConvolutionFwdAlgo_t forward{};
  cudnnConvolutionBwdDataAlgo_t backward_data{};
  cudnnConvolutionBwdFilterAlgo_t backward_filter{};

  Plan(Device& device, const LayerGeometry& g, const std::vector<std::int64_t>& input, int channels, bool last,
       DevicePrecision precision)
      : context(context_of(device)),
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
