#include "exec/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "onnx/model.h"

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

namespace {

constexpr int kBias = 127, kInfinite = 255, kMantissaBits = 23;
constexpr std::uint32_t kMantissa = (1U << kMantissaBits) - 1;

int exponent_field(float value) {
  return static_cast<int>(std::bit_cast<std::uint32_t>(value) >> kMantissaBits & 0xff);
}

int largest_field(std::span<const float> values) {
  int most = 0;
  for (const float value : values) most = std::max(most, exponent_field(value));
  return most;
}

// Infinities and NaN count as 0.
int largest_finite_field(std::span<const float> values) {
  int most = 0;
  for (const float value : values) {
    const int field = exponent_field(value);
    if (field != kInfinite) most = std::max(most, field);
  }
  return most;
}

float rounded(float value, HalfWay half_way) {
  switch (half_way) {
    case HalfWay::away: return std::round(value);
    case HalfWay::up: return value < 0 && value - std::floor(value) == 0.5F ? std::ceil(value) : std::round(value);
    case HalfWay::to_even: break;
  }
  return std::nearbyint(value);
}

// `mantissa` without its last bits, rounded, but not beyond `most`.
std::uint32_t without_tail(std::uint32_t mantissa, int tail_bits, std::uint32_t most, bool negative, HalfWay half_way) {
  if (tail_bits > kMantissaBits + 2) return 0;
  const std::uint32_t half = 1U << (tail_bits - 1), tail = mantissa & ((1U << tail_bits) - 1);
  const std::uint32_t kept = mantissa >> tail_bits;
  if (kept == most || tail < half) return kept;
  if (tail > half || half_way == HalfWay::away) return kept + 1;
  return half_way == HalfWay::up ? kept + (negative ? 0 : 1) : kept + kept % 2;
}

// The nearest number of a small floating-point type, ties to even; beyond the largest it is that.
float nearest_float(float value, const Microscaling& format) {
  if (value == 0) return value;
  const int smallest = 2 - (1 << (format.exponent_bits - 1));  // exponent of the smallest normal number
  const int exponent = std::max(std::ilogb(value), smallest);
  const float step = std::ldexp(1.0F, exponent - format.mantissa_bits);
  return std::clamp(std::nearbyint(value / step) * step, -format.largest, format.largest);
}

float nearest_integer(float value, HalfWay half_way, float largest) {
  constexpr float kStep = 1.0F / 64;
  return std::clamp(rounded(value / kStep, half_way), -largest - 1, largest) * kStep;
}

}  // namespace

Microscaling microscaling_of(std::string_view element_type) {
  if (element_type == "fp8_e5m2") return {5, 2, 15, 57344};
  if (element_type == "fp8_e4m3") return {4, 3, 8, 448};
  if (element_type == "fp6_e3m2") return {3, 2, 4, 28};
  if (element_type == "fp6_e2m3") return {2, 3, 2, 7.5F};
  if (element_type == "fp4_e2m1") return {2, 1, 2, 6};
  if (element_type == "int8") return {0, 8, 0, 127};
  throw bad_input(fmt::format("MXQuantizeDequantize has no element_dtype '{}'", element_type));
}

void round_block(const SharedExponent& format, std::span<float> block) {
  const int exponent = largest_finite_field(block) - kBias, bits = format.bit_width - 9;
  const float scale = std::ldexp(1.0F, exponent - (bits - 1));
  const auto largest = static_cast<float>(std::ldexp(1.0, exponent + 1) - static_cast<double>(scale));
  for (float& value : block) {
    if (exponent_field(value) == kInfinite) continue;
    value = std::clamp(rounded(value / scale, format.half_way) * scale, -largest, largest);
  }
}

void round_block(const Microexponents& format, std::span<float> block) {
  const int bits = format.bit_width - 9, shared = largest_field(block);
  for (std::size_t begin = 0; begin < block.size(); begin += format.part) {
    const auto part = block.subspan(begin, std::min(format.part, block.size() - begin));
    const int shift = std::min(shared - largest_field(part), (1 << format.shift_bits) - 1);
    for (float& value : part) {
      if (shared == kInfinite) {
        value = std::numeric_limits<float>::quiet_NaN();
        continue;
      }
      const int field = exponent_field(value);
      const bool negative = std::signbit(value);
      const std::uint32_t mantissa =
          field == 0 ? 0 : (std::bit_cast<std::uint32_t>(value) & kMantissa) | 1U << kMantissaBits;
      const int tail = shared - shift - field + kMantissaBits - bits + 1;
      const auto kept = without_tail(mantissa, tail, (1U << bits) - 1, negative, format.half_way);
      const double size = std::ldexp(static_cast<double>(kept), shared - kBias - shift + 1 - bits);
      value = static_cast<float>(negative ? -size : size);
    }
  }
}

void round_block(const Microscaling& format, std::span<float> block) {
  const float scale = std::ldexp(1.0F, largest_finite_field(block) - kBias - format.largest_exponent);
  for (float& value : block) {
    if (exponent_field(value) == kInfinite) continue;
    const float element = value / scale;
    value = scale * (format.exponent_bits > 0 ? nearest_float(element, format)
                                              : nearest_integer(element, format.half_way, format.largest));
  }
}

void for_each_block(std::span<const std::int64_t> shape, std::size_t axis, std::size_t size,
                    std::span<const float> values, std::span<float> out,
                    const std::function<void(std::span<float>)>& round) {
  std::size_t length = 1, inner = 1;
  if (!shape.empty()) length = static_cast<std::size_t>(shape[axis]);
  for (std::size_t d = axis + 1; d < shape.size(); ++d) inner *= static_cast<std::size_t>(shape[d]);
  if (values.empty()) return;
  const std::size_t rows = values.size() / (length * inner);
  std::vector<float> block(size);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < inner; ++column) {
      for (std::size_t begin = 0; begin < length; begin += size) {
        const std::size_t count = std::min(size, length - begin);
        const std::size_t first = (row * length + begin) * inner + column;
        for (std::size_t i = 0; i < count; ++i) block[i] = values[first + i * inner];
        std::fill(block.begin() + static_cast<std::ptrdiff_t>(count), block.end(), 0.0F);
        round(block);
        for (std::size_t i = 0; i < count; ++i) out[first + i * inner] = block[i];
      }
    }
  }
}

namespace {

template <class Get>
bool works(const Get& get) {
  try {
    (void)get();
    return true;
  } catch (const Ort::Exception&) {
    return false;
  }
}

// In any type. The runtime does not tell an attribute that is missing from one of another type.
bool is_defined(const Ort::ConstKernelInfo& info, const char* name) {
  return works([&] { return info.GetAttribute<std::int64_t>(name); }) ||
         works([&] { return info.GetAttribute<float>(name); }) ||
         works([&] { return info.GetAttribute<std::string>(name); }) ||
         works([&] { return info.GetAttributes<std::int64_t>(name); }) ||
         works([&] { return info.GetAttributes<float>(name); });
}

// The fallback is what AMD Quark's operators take where an attribute is left out.
template <class T>
T attribute_or(const Ort::ConstKernelInfo& info, const char* name, T fallback) {
  try {
    return info.GetAttribute<T>(name);
  } catch (const Ort::Exception&) {
    if (!is_defined(info, name)) return fallback;
    throw bad_input(fmt::format("the attribute {} must be {}", name,
                                std::is_same_v<T, std::string> ? "a string" : "a whole number"));
  }
}

HalfWay half_way_of(const Ort::ConstKernelInfo& info) {
  const auto mode = attribute_or<std::int64_t>(info, "rounding_mode", 0);
  if (mode < 0 || mode > 2) throw bad_input(fmt::format("there is no rounding_mode {}", mode));
  return static_cast<HalfWay>(mode);
}

BlockKernel kernel_of(const Ort::ConstKernelInfo& info, std::int64_t block_size) {
  BlockKernel kernel{attribute_or<std::int64_t>(info, "axis", 1), 0, {}};
  const auto size = attribute_or<std::int64_t>(info, "block_size", block_size);
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  if (size < 1 || size > kMost) throw bad_input(fmt::format("there are no blocks of {} numbers", size));
  kernel.block_size = static_cast<std::size_t>(size);
  return kernel;
}

int small(const Ort::ConstKernelInfo& info, const char* name, std::int64_t fallback, std::int64_t least,
          std::int64_t most) {
  const auto value = attribute_or<std::int64_t>(info, name, fallback);
  if (value < least || value > most)
    throw bad_input(fmt::format("{} is {}, and not {} to {}", name, value, least, most));
  return static_cast<int>(value);
}

BlockKernel shared_exponents(const Ort::ConstKernelInfo& info) {
  constexpr int kLeastBits = 10, kMostBits = 31;
  auto kernel = kernel_of(info, 8);
  const auto method = attribute_or<std::string>(info, "bfp_method", "to_bfp");
  const int bits = small(info, "bit_width", 16, kLeastBits, kMostBits);
  if (attribute_or<std::int64_t>(info, "use_compiler_version_cpu_kernel", 0) != 0)
    throw bad_input("use_compiler_version_cpu_kernel is not supported");
  if (method == "to_bfp") {
    kernel.round = [format = SharedExponent{bits, half_way_of(info)}](auto block) { round_block(format, block); };
  } else if (method == "to_bfp_prime") {
    const Microexponents format{bits, static_cast<std::size_t>(small(info, "sub_block_size", 2, 1, 1 << 20)),
                                small(info, "sub_block_shift_bits", 1, 0, 7), half_way_of(info)};
    kernel.round = [format](auto block) { round_block(format, block); };
  } else {
    throw bad_input(fmt::format("BFPQuantizeDequantize has no bfp_method '{}'", method));
  }
  return kernel;
}

BlockKernel shared_scales(const Ort::ConstKernelInfo& info) {
  auto kernel = kernel_of(info, 32);
  auto format = microscaling_of(attribute_or<std::string>(info, "element_dtype", "int8"));
  format.half_way = half_way_of(info);
  kernel.round = [format](auto block) { round_block(format, block); };
  return kernel;
}

// Exceptions must not pass through the runtime.
OrtStatusPtr status_of(const std::function<void()>& work) {
  try {
    work();
    return nullptr;
  } catch (const std::exception& e) {
    return Ort::GetApi().CreateStatus(ORT_INVALID_ARGUMENT, e.what());
  }
}

}  // namespace

OrtStatusPtr BlockKernel::ComputeV2(OrtKernelContext* context) {
  return status_of([&] {
    const Ort::KernelContext kernel(context);
    const auto input = kernel.GetInput(0);
    const auto shape = input.GetTensorTypeAndShapeInfo().GetShape();
    const auto count = input.GetTensorTypeAndShapeInfo().GetElementCount();
    const auto rank = static_cast<std::int64_t>(shape.size());
    // Vectors have one axis, whatever the attribute says.
    const std::int64_t along = rank <= 1 ? 0 : axis < 0 ? axis + rank : axis;
    if (along < 0 || (rank > 0 && along >= rank)) throw bad_input(fmt::format("there is no axis {} of {}", axis, rank));
    auto output = kernel.GetOutput(0, shape.data(), shape.size());
    for_each_block(shape, static_cast<std::size_t>(along), block_size, {input.GetTensorData<float>(), count},
                   {output.GetTensorMutableData<float>(), count}, round);
  });
}

OrtStatusPtr BlockOperator::CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
  return status_of([&] {
    *kernel = std::make_unique<BlockKernel>(create_(Ort::ConstKernelInfo(info))).release();
  });  // KernelDestroy
}

Ort::Status BlockOperator::InferOutputShape(Ort::ShapeInferContext& context) {
  auto shape = context.GetInputShape(0);
  // What is not known looks like a scalar here.
  if (shape.empty()) return Ort::Status(nullptr);
  // An axis that is not known looks like one of -1, which the runtime would take for its length: it gets a name.
  static std::atomic<std::uint64_t> count = 0;
  std::list<std::string> names;
  for (auto& dim : shape) {
    if (dim.IsInt() && dim.AsInt() < 0) dim = names.emplace_back(fmt::format("any_length_{}", count++)).c_str();
  }
  return context.SetOutputShape(0, shape);
}

BlockDomain::BlockDomain()
    : shared_("BFPQuantizeDequantize", shared_exponents),
      scaled_("MXQuantizeDequantize", shared_scales),
      domain_(onnx::kQuarkDomain) {
  domain_.Add(&shared_);
  domain_.Add(&scaled_);
}

}  // namespace detent::exec
