// Private to exec/: the tap as a custom operator of ONNX Runtime.
#pragma once

#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "data/tap.h"
#include "exec/ort.h"
#include "exec/tap_names.h"
#include "shim/device.h"

namespace detent::exec {

class TapOperator;

struct TapKernel {
  TapKernel(const TapOperator& owner, std::size_t index) : owner_(owner), index_(index) {}
  OrtStatusPtr ComputeV2(OrtKernelContext* context);

 private:
  void hand_over(const Ort::KernelContext& context, data::TapReceiver& receiver) const;
  void hand_over_on_device(const Ort::KernelContext& context, data::TapReceiver& receiver,
                           const shim::Device& device) const;

  const TapOperator& owner_;
  std::size_t index_;
};

/// One per session. Input and output have the same type and share their memory (alias map {0} -> {0}); where receivers
/// change what they get, only as far as nothing else reads the input (in-place map). There is no
/// shape inference function: the runtime takes the shape from what the kernel gives. The runtime calls the kernels of a
/// run in the thread that started it, which is how they find its receiver. On a device, which must outlive the
/// operator, tensors stay there.
class TapOperator : public Ort::CustomOpBase<TapOperator, TapKernel, true> {
 public:
  /// The run of this thread: names its receiver for as long as it lives.
  class Run {
   public:
    Run(TapOperator& owner, data::TapReceiver* receiver);
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;
    ~Run();
    /// Throws what the receiver threw, if it did.
    void rethrow() const;

   private:
    friend struct TapKernel;
    TapOperator& owner_;
    data::TapReceiver* receiver_;
    std::exception_ptr error_;  // exceptions must not pass through the runtime
  };

  explicit TapOperator(bool edits, const shim::Device* device = nullptr);

  const char* GetName() const { return kTapOperator; }
  std::size_t GetInputTypeCount() const { return 1; }
  std::size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED; }
  const char* GetExecutionProviderType() const { return device_ == nullptr ? nullptr : device_->provider.c_str(); }
  OrtStatusPtr CreateKernelV2(const OrtApi& api, const OrtKernelInfo* info, void** kernel) const;

  /// The run that the calling thread is in; nullptr outside of runs.
  Run* current() const;
  const shim::Device* device() const { return device_; }

 private:
  const shim::Device* device_;
  mutable std::mutex mutex_;
  std::map<std::thread::id, Run*> runs_;
};

}  // namespace detent::exec
