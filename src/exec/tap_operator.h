// Private to exec/: the tap as a custom operator of ONNX Runtime.
#pragma once

#include <exception>
#include <mutex>

#include "exec/ort.h"
#include "exec/tap.h"

namespace detent::exec {

class TapOperator;

struct TapKernel {
  TapKernel(const TapOperator& owner, std::size_t index) : owner_(owner), index_(index) {}
  OrtStatusPtr ComputeV2(OrtKernelContext* context);

 private:
  const TapOperator& owner_;
  std::size_t index_;
};

/// One per session. Input and output have the same type and share their memory (alias map {0} -> {0}). There is no
/// shape inference function: the runtime takes the shape from what the kernel gives.
class TapOperator : public Ort::CustomOpBase<TapOperator, TapKernel, true> {
 public:
  explicit TapOperator(TapReceiver& receiver);

  const char* GetName() const { return kTapOperator; }
  std::size_t GetInputTypeCount() const { return 1; }
  std::size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED; }
  OrtStatusPtr CreateKernelV2(const OrtApi& api, const OrtKernelInfo* info, void** kernel) const;

  TapReceiver& receiver() const { return receiver_; }
  /// Keeps what a receiver threw: exceptions must not pass through the runtime.
  void keep(std::exception_ptr error) const;
  /// Throws what was kept, once.
  void rethrow();

 private:
  TapReceiver& receiver_;
  mutable std::mutex mutex_;
  mutable std::exception_ptr error_;
};

}  // namespace detent::exec
