#include "shim/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "shim/library.h"

namespace detent::shim {
namespace {

// The part of the driver's C interface that is used here, declared anew: its header comes with the CUDA toolkit only.
using Init = int(unsigned flags);
using DeviceGetCount = int(int* count);
using GetErrorName = int(int code, const char** name);
constexpr int kSuccess = 0;

std::string name_of(const Library& library, int code) {
  const char* name = nullptr;
  const auto get = reinterpret_cast<GetErrorName*>(library.symbol("cuGetErrorName"));
  return get(code, &name) == kSuccess && name != nullptr ? name : fmt::format("error {}", code);
}

const CudaProbe& probe_of(const Library& plugin) {
  const CudaProbe* probe = reinterpret_cast<CudaProbeEntry*>(plugin.symbol(kCudaProbeEntryName))(kCudaProbeVersion);
  if (probe == nullptr) {
    throw device_error(fmt::format("the plugin '{}' is of another version than this detent", plugin.name()),
                       "use the libdetent_cuda.so that was built with it");
  }
  return *probe;
}

}  // namespace

CudaDriver find_cuda_driver(const std::string& name) {
  const auto library = Library::open({name});
  if (!library) {
    const char* reason = ::dlerror();
    return {0, fmt::format("no CUDA driver ({})", reason == nullptr ? name : reason)};
  }
  try {
    const auto init = reinterpret_cast<Init*>(library->symbol("cuInit"));
    const auto count = reinterpret_cast<DeviceGetCount*>(library->symbol("cuDeviceGetCount"));
    if (const int code = init(0); code != kSuccess)
      return {0, fmt::format("the CUDA driver does not start ({})", name_of(*library, code))};
    int devices = 0;
    if (const int code = count(&devices); code != kSuccess)
      return {0, fmt::format("the CUDA driver does not count its devices ({})", name_of(*library, code))};
    return {devices, devices > 0 ? "" : "the CUDA driver sees no device"};
  } catch (const Error& e) {  // a library of that name that is no driver
    return {0, fmt::format("no CUDA driver ({})", e.what())};
  }
}

void require_cuda(const std::vector<int>& devices, const CudaDriver& driver) {
  for (const int device : devices) {
    if (driver.devices == 0) {
      throw device_error(fmt::format("--device cuda:{}: {}", device, driver.reason),
                         "give --device cpu, or install NVIDIA's driver");
    }
    if (device >= driver.devices) {
      throw device_error(fmt::format("--device cuda:{}: the CUDA driver sees {} device{}", device, driver.devices,
                                     driver.devices == 1 ? "" : "s"),
                         "they are numbered from 0, and CUDA_VISIBLE_DEVICES can hide some");
    }
  }
}

void require_cuda(const std::vector<int>& devices) {
  if (devices.empty()) return;
  require_cuda(devices, find_cuda_driver());
  const Library plugin = load_cuda_plugin({});
  for (const int device : devices) probe_of(plugin).require(device);
}

std::uint64_t cuda_budget(const std::vector<int>& devices) {
  require_cuda(devices, find_cuda_driver());
  const Library plugin = load_cuda_plugin({});
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const int device : devices) least = std::min(least, probe_of(plugin).budget(device));
  return least;
}

}  // namespace detent::shim
