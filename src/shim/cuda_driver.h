// NVIDIA's driver, asked before anything that needs it is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace detent::shim {

/// What there is, in words: `devices` counts them; when it is 0, `reason` says why.
struct CudaDriver {
  int devices = 0;
  std::string reason;
};

/// Loads the driver's library and counts its devices. Never throws for a machine without any. May take seconds when
/// nothing has used a device yet: the driver then starts it. `library` is another one for tests.
CudaDriver find_cuda_driver(const std::string& library = "libcuda.so.1");

/// An entry of the plugin for GPUs: whether it and the runtime in it can use a device.
struct CudaProbe {
  /// Throws device.
  void (*require)(int device);
  /// Bytes that a run takes of its memory where no budget is given. Throws device.
  std::uint64_t (*budget)(int device);
};
using CudaProbeEntry = const CudaProbe*(int version);  // null: the plugin is of another version
inline constexpr const char* kCudaProbeEntryName = "detent_cuda_probe";
/// Raised when the entry changes. Plugin and binary come from the same compiler.
inline constexpr int kCudaProbeVersion = 2;

/// Throws device, with the reason, unless each of these devices is there. Call it before any work is done.
void require_cuda(const std::vector<int>& devices, const CudaDriver& driver);

/// The same of driver, plugin and the libraries behind it, all of which are loaded for that.
void require_cuda(const std::vector<int>& devices);

/// The smallest of the devices' budgets, where none is given. Throws as require_cuda().
std::uint64_t cuda_budget(const std::vector<int>& devices);

}  // namespace detent::shim
