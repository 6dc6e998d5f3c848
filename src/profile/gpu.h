// GPU memory in use, asked of NVIDIA's management library, which comes with the driver, and read from the files of
// AMD's driver. Nothing is linked: without a device there is no meter and the figures are left out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "profile/amd_gpu.h"
#include "profile/gpu_memory.h"

namespace detent::profile {

/// Reads the GPU memory of this process, or of the devices, again and again. Move-only; calls come from one thread at
/// a time.
class GpuMeter {
 public:
  struct Options {
    std::string library = "libnvidia-ml.so.1";
    /// Whether the driver knows processes by the same numbers as this one does; by default by the PID namespace.
    std::optional<bool> sees_own_pid;
    AmdPlaces amd = {};
  };

  /// nullopt when no device is found, as where the library is not there or broken. May take seconds when nothing has
  /// used the GPU yet: the driver then starts it.
  static std::optional<GpuMeter> open(const Options& options);
  static std::optional<GpuMeter> open() { return open(Options()); }

  /// Whether this process has loaded the CUDA driver or ROCm's runtime, without which it has no GPU memory. Costs a few
  /// microseconds.
  static bool driver_is_loaded() noexcept;

  GpuMeter(GpuMeter&&) noexcept;
  GpuMeter& operator=(GpuMeter&&) noexcept;
  ~GpuMeter();

  /// Now, summed over the devices. A device that does not answer counts as zero.
  GpuMemory now();

 private:
  struct Nvml;
  GpuMeter(std::unique_ptr<Nvml> nvml, std::optional<AmdGpus> amd) noexcept;
  static std::unique_ptr<Nvml> open_nvml(const Options& options);
  GpuMemory nvidia_now();

  std::unique_ptr<Nvml> nvml_;  // may be null
  std::optional<AmdGpus> amd_;
};

}  // namespace detent::profile
