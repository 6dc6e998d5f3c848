// GPU memory in use, asked of NVIDIA's management library, which comes with the driver. Nothing is linked: without the
// library, or without a device, there is no meter and the figures are left out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace detent::profile {

struct GpuMemory {
  std::uint64_t bytes = 0;
  /// False: used by all programs on all devices that this machine or container shows. That is the answer where the
  /// driver does not tell which process uses what, and in a container where it tells by numbers of the host.
  bool of_this_process = false;
  /// Percent of the last moments (up to a second) in which a kernel ran on the busiest device, whoever's it was; 0
  /// where the driver does not tell.
  unsigned busy_percent = 0;
};

/// Reads the GPU memory of this process, or of the devices, again and again. Move-only; calls come from one thread at
/// a time.
class GpuMeter {
 public:
  struct Options {
    std::string library = "libnvidia-ml.so.1";
    /// Whether the driver knows processes by the same numbers as this one does; by default by the PID namespace.
    std::optional<bool> sees_own_pid;
  };

  /// nullopt when the library is not there, is broken, or finds no device. May take seconds when nothing has used the
  /// GPU yet: the driver then starts it.
  static std::optional<GpuMeter> open(const Options& options);
  static std::optional<GpuMeter> open() { return open(Options()); }

  /// Whether this process has loaded the CUDA driver, without which it has no GPU memory. Costs a few microseconds.
  static bool cuda_is_loaded() noexcept;

  GpuMeter(GpuMeter&&) noexcept;
  GpuMeter& operator=(GpuMeter&&) noexcept;
  ~GpuMeter();

  /// Now, summed over the devices. A device that does not answer counts as zero.
  GpuMemory now();

 private:
  struct Nvml;
  explicit GpuMeter(std::unique_ptr<Nvml> nvml) noexcept;

  std::unique_ptr<Nvml> nvml_;
};

}  // namespace detent::profile
