// What a GPU's driver tells.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

// Memory of AMD's GPUs, read from files of the kernel's driver amdgpu. No library is loaded and no program is run.

/// Where the kernel shows its devices, and what ROCm's variables leave of them.
struct AmdPlaces {
  std::filesystem::path devices = "/sys/class/drm";
  std::filesystem::path own_files = "/proc/self/fdinfo";  // of this process
};

class AmdGpus {
 public:
  /// nullopt when there is no such device, or ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES leave none.
  static std::optional<AmdGpus> open(const AmdPlaces& places);

  /// Now, summed over the devices: of this process where the driver tells it in the files of the process's own, else
  /// of all programs. What cannot be read counts as zero.
  GpuMemory now() const;

 private:
  struct Card {
    std::string address;           // on the bus
    std::filesystem::path folder;  // of its device
    std::string id;                // "GPU-" and 16 digits; empty: the driver does not tell
  };
  AmdGpus(std::vector<Card> cards, std::filesystem::path own_files)
      : cards_(std::move(cards)), own_files_(std::move(own_files)) {}
  static std::vector<Card> cards_of(const std::filesystem::path& devices);
  static std::vector<Card> visible(std::vector<Card> cards, const char* variable);
  std::optional<std::uint64_t> used_by_us() const;

  std::vector<Card> cards_;
  std::filesystem::path own_files_;
};

// GPU memory in use, asked of NVIDIA's management library, which comes with the driver, and read from the files of
// AMD's driver. Nothing is linked: without a device there is no meter and the figures are left out.

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
