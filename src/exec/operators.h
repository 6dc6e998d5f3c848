// Operators of our own, which the runtime calls within a graph: taps, and rounding in blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>

#include "data/sample.h"
#include "exec/emit.h"
#include "exec/ort.h"
#include "shim/cuda_driver.h"

namespace detent::exec {

// Private to exec/: the tap as a custom operator of ONNX Runtime.

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

// Rounding to formats of neighbouring numbers that share an exponent: the arithmetic of AMD Quark's operators
// BFPQuantizeDequantize and MXQuantizeDequantize.

/// How a number in the middle between two others is rounded.
enum class HalfWay { away = 0, up = 1, to_even = 2 };

/// Numbers with one exponent and mantissas of bit_width - 9 bits besides the sign ("to_bfp"). Infinities and NaN stay.
struct SharedExponent {
  int bit_width = 16;
  HalfWay half_way = HalfWay::to_even;
};

/// The same, and parts of the block shift theirs by up to 2^shift_bits - 1 ("to_bfp_prime"). A block with an infinity
/// or NaN is NaN, and subnormal numbers are 0.
struct Microexponents {
  int bit_width = 13;
  std::size_t part = 2;
  int shift_bits = 1;
  HalfWay half_way = HalfWay::to_even;
};

/// Elements of a small floating-point type, or of 8-bit integers where it has no exponent, times a power of two.
/// Infinities and NaN stay.
struct Microscaling {
  int exponent_bits = 0;
  int mantissa_bits = 8;
  int largest_exponent = 0;
  float largest = 127;
  HalfWay half_way = HalfWay::to_even;  // of integers; floats are rounded to even
};

/// "fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1", "int8". Throws bad_input for others.
Microscaling microscaling_of(std::string_view element_type);

/// Each rounds one block in place.
void round_block(const SharedExponent& format, std::span<float> block);
void round_block(const Microexponents& format, std::span<float> block);
void round_block(const Microscaling& format, std::span<float> block);

/// Hands over blocks of `size` numbers that follow one another along `axis`; the last of a row is filled with zeros,
/// which are dropped again. `values` has `shape`; without dimensions it is one block.
void for_each_block(std::span<const std::int64_t> shape, std::size_t axis, std::size_t size,
                    std::span<const float> values, std::span<float> out,
                    const std::function<void(std::span<float>)>& round);

// Private to exec/: AMD Quark's operators on block floats as custom operators of ONNX Runtime, so that models with them
// run here without Quark's library.

struct BlockKernel {
  std::int64_t axis = 1;
  std::size_t block_size = 8;
  std::function<void(std::span<float>)> round;

  OrtStatusPtr ComputeV2(OrtKernelContext* context);
};

/// `create` reads the attributes of a node.
class BlockOperator : public Ort::CustomOpBase<BlockOperator, BlockKernel, true> {
 public:
  using Create = BlockKernel (*)(const Ort::ConstKernelInfo&);
  BlockOperator(const char* name, Create create) : name_(name), create_(create) {}

  const char* GetName() const { return name_; }
  std::size_t GetInputTypeCount() const { return 1; }
  std::size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  OrtStatusPtr CreateKernelV2(const OrtApi& api, const OrtKernelInfo* info, void** kernel) const;

  static Ort::Status InferOutputShape(Ort::ShapeInferContext& context);

 private:
  const char* name_;
  Create create_;
};

/// The domain com.amd.quark with both operators.
class BlockDomain {
 public:
  BlockDomain();
  void add_to(Ort::SessionOptions& options) { options.Add(domain_); }

 private:
  BlockOperator shared_, scaled_;
  Ort::CustomOpDomain domain_{nullptr};
};

}  // namespace detent::exec
