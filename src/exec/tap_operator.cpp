#include "exec/tap_operator.h"

#include <cstring>
#include <new>

#include "base/error.h"

namespace detent::exec {
namespace {

std::size_t alias_map(int** inputs, int** outputs) {
  static int zero = 0;  // the runtime only reads it
  *inputs = &zero;
  *outputs = &zero;
  return 1;
}
void release_alias_map(int*, int*) {}

// A tap's tensor, and where its output is to stand: there as a rule.
struct Passed {
  onnx::DataType type;
  std::vector<std::int64_t> shape;
  std::size_t size;
  const std::byte* in;
  std::byte* out;
};

Passed pass(const Ort::KernelContext& context) {
  const auto input = context.GetInput(0);
  const auto info = input.GetTensorTypeAndShapeInfo();
  Passed passed{static_cast<onnx::DataType>(info.GetElementType()), info.GetShape(), 0, nullptr, nullptr};
  passed.size = onnx::byte_count(passed.type, static_cast<std::int64_t>(info.GetElementCount())).value_or(0);
  passed.in = static_cast<const std::byte*>(input.GetTensorRawData());
  auto output = context.GetOutput(0, passed.shape.data(), passed.shape.size());
  passed.out = static_cast<std::byte*>(output.GetTensorMutableRawData());
  return passed;
}

struct ParallelCall {
  const std::function<void(std::size_t)>* fn;
  static void invoke(void* self, std::size_t part) { (*static_cast<ParallelCall*>(self)->fn)(part); }
};

}  // namespace

TapOperator::TapOperator(bool edits, const shim::Device* device) : device_(device) {
  (edits ? OrtCustomOp::GetMayInplace : OrtCustomOp::GetAliasMap) = alias_map;
  (edits ? OrtCustomOp::ReleaseMayInplace : OrtCustomOp::ReleaseAliasMap) = release_alias_map;
}

OrtStatusPtr TapOperator::CreateKernelV2(const OrtApi& api, const OrtKernelInfo* info, void** kernel) const {
  std::int64_t index = 0;
  if (OrtStatusPtr status = api.KernelInfoGetAttribute_int64(info, "index", &index)) return status;
  *kernel = std::make_unique<TapKernel>(*this, static_cast<std::size_t>(index)).release();  // KernelDestroy deletes it
  return nullptr;
}

TapOperator::Run::Run(TapOperator& owner, data::TapReceiver* receiver) : owner_(owner), receiver_(receiver) {
  const std::lock_guard lock(owner_.mutex_);
  owner_.runs_[std::this_thread::get_id()] = this;
}

TapOperator::Run::~Run() {
  const std::lock_guard lock(owner_.mutex_);
  owner_.runs_.erase(std::this_thread::get_id());
}

void TapOperator::Run::rethrow() const {
  if (error_) std::rethrow_exception(error_);
}

TapOperator::Run* TapOperator::current() const {
  const std::lock_guard lock(mutex_);
  const auto found = runs_.find(std::this_thread::get_id());
  return found == runs_.end() ? nullptr : found->second;
}

OrtStatusPtr TapKernel::ComputeV2(OrtKernelContext* raw_context) {
  TapOperator::Run* const run = owner_.current();
  if (run == nullptr || run->receiver_ == nullptr)
    return Ort::GetApi().CreateStatus(ORT_FAIL, "a tap was reached by a run without a receiver");
  try {
    const Ort::KernelContext context(raw_context);
    if (const shim::Device* device = owner_.device()) {
      hand_over_on_device(context, *run->receiver_, *device);
    } else {
      hand_over(context, *run->receiver_);
    }
    return nullptr;
  } catch (const Ort::Exception& e) {  // what the runtime refuses, as an output of another shape than the model states
    return Ort::GetApi().CreateStatus(e.GetOrtErrorCode(), e.what());
  } catch (...) {
    run->error_ = std::current_exception();
    return Ort::GetApi().CreateStatus(ORT_FAIL, "a tap's receiver stopped the run");
  }
}

void TapKernel::hand_over(const Ort::KernelContext& context, data::TapReceiver& receiver) const {
  const auto [type, shape, size, in, out] = pass(context);
  // The runtime keeps them apart where the input is still needed elsewhere, as at the borders of bodies.
  if (out != in && size > 0) std::memcpy(out, in, size);
  const data::ParallelFor parallel = [&](std::size_t parts, const std::function<void(std::size_t)>& fn) {
    ParallelCall call{&fn};
    context.ParallelFor(ParallelCall::invoke, parts, 0, &call);
  };
  receiver.receive(index_, {type, shape, {out, size}, {out, size}}, parallel);
}

void TapKernel::hand_over_on_device(const Ort::KernelContext& context, data::TapReceiver& receiver,
                                    const shim::Device& device) const {
  // What the receiver puts on the device's stream would else not wait for the tensor.
  if (context.GetGPUComputeStream() != device.stream)
    throw internal_error("ONNX Runtime computes on another stream than it was given");
  const auto [type, shape, size, in, out] = pass(context);
  if (out != in && size > 0) device.copy(out, in, size);
  receiver.receive_on_device(index_, {type, shape, out, size});
}

}  // namespace detent::exec
