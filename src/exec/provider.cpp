#include "exec/provider.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "exec/message.h"

namespace detent::exec {
namespace {

constexpr const char* kCpu = "CPUExecutionProvider";
constexpr const char* kHint =
    "install onnxruntime-gpu (pip install onnxruntime-gpu) and set DETENT_ONNXRUNTIME to the path of its "
    "libonnxruntime.so; or give --device cpu, to detent calibrate too, whose statistics quantize --statistics reads";

struct ReleaseOptions {
  void operator()(OrtCUDAProviderOptionsV2* options) const { Ort::GetApi().ReleaseCUDAProviderOptions(options); }
};
using CudaOptions = std::unique_ptr<OrtCUDAProviderOptionsV2, ReleaseOptions>;

CudaOptions cuda_options(const shim::Device& device) {
  const auto& api = Ort::GetApi();
  OrtCUDAProviderOptionsV2* made = nullptr;
  Ort::ThrowOnError(api.CreateCUDAProviderOptions(&made));
  CudaOptions options(made);
  const std::string ordinal = std::to_string(device.ordinal);
  const std::string limit = std::to_string(device.memory_limit);
  std::vector<std::pair<const char*, const char*>> settings{
      {"device_id", ordinal.c_str()},
      {"use_tf32", device.tf32 ? "1" : "0"},
      // The default tries algorithms out and takes the fastest: another one each time, with other rounding.
      {"cudnn_conv_algo_search", "HEURISTIC"},
      // The default doubles what it takes each time.
      {"arena_extend_strategy", "kSameAsRequested"}};
  if (device.memory_limit > 0) settings.emplace_back("gpu_mem_limit", limit.c_str());
  std::vector<const char*> keys, values;
  for (const auto& [key, value] : settings) {
    keys.push_back(key);
    values.push_back(value);
  }
  Ort::ThrowOnError(api.UpdateCUDAProviderOptions(made, keys.data(), values.data(), keys.size()));
  if (device.stream != nullptr)
    Ort::ThrowOnError(api.UpdateCUDAProviderOptionsWithValue(made, "user_compute_stream", device.stream));
  return options;
}

}  // namespace

void append_provider(Ort::SessionOptions& options, const shim::Device& device, const std::string& library) {
  if (device.provider == kCpu) return;  // it stands behind all others anyway
  const auto available = Ort::GetAvailableProviders();
  if (std::find(available.begin(), available.end(), device.provider) == available.end()) {
    throw device_error(fmt::format("this ONNX Runtime ('{}') was built without {}", library, device.provider), kHint);
  }
  try {
    options.AppendExecutionProvider_CUDA_V2(*cuda_options(device));
  } catch (const Ort::Exception& e) {
    throw device_error(
        fmt::format("ONNX Runtime ('{}') cannot load {}: {}", library, device.provider, one_line(e.what())),
        "install the CUDA and cuDNN libraries that this onnxruntime-gpu was built for");
  }
  // Sums by atomic additions come in another order each time.
  options.SetDeterministicCompute(true);
}

void append_provider(Ort::SessionOptions& options, const std::string& name, const std::string& library) {
  if (name == kCpu) return;
  const auto available = Ort::GetAvailableProviders();
  if (std::find(available.begin(), available.end(), name) == available.end())
    throw device_error(fmt::format("this ONNX Runtime ('{}') has no {}", library, name),
                       fmt::format("it has {}; --runtime gives another one", fmt::join(available, ", ")));
  try {
    if (name == "CUDAExecutionProvider") {
      options.AppendExecutionProvider_CUDA(OrtCUDAProviderOptions());
    } else if (name == "TensorrtExecutionProvider") {
      options.AppendExecutionProvider_TensorRT(OrtTensorRTProviderOptions());
    } else {
      const auto short_name = name.substr(0, name.rfind("ExecutionProvider"));
      options.AppendExecutionProvider(short_name == "Xnnpack" ? "XNNPACK" : short_name);
    }
  } catch (const Ort::Exception& e) {
    throw device_error(fmt::format("ONNX Runtime ('{}') cannot load {}: {}", library, name, one_line(e.what())),
                       "install the libraries that the provider needs, or give another --provider");
  }
}

bool is_device_failure(const std::string& text) {
  constexpr std::array<std::string_view, 4> kSigns{"CUDA failure", "CUDNN failure", "CUBLAS failure", "CUDA error"};
  return std::any_of(kSigns.begin(), kSigns.end(),
                     [&](std::string_view sign) { return text.find(sign) != std::string::npos; });
}

}  // namespace detent::exec
