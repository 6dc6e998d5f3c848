// Memory of AMD's GPUs, read from files of the kernel's driver amdgpu. No library is loaded and no program is run.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "profile/gpu_memory.h"

namespace detent::profile {

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

}  // namespace detent::profile
