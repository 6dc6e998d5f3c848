#include "exec/block_operators.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "exec/block_rounding.h"
#include "onnx/quark.h"

namespace detent::exec {
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
