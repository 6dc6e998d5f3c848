// The devices that calibration and fine-tuning run on.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace detent {

/// The precision of a GPU's products. Sums are always float32, and sums over samples are made of float32 values only.
enum class DevicePrecision { float32, tf32, bfloat16 };

/// The layout of a GPU's convolutions. `automatic` times both for each shape. The faster one can differ from run to
/// run, and with it the last bits of the sums.
enum class DeviceLayout { automatic, nchw, nhwc };

/// Whether a GPU reads spooled samples by GPUDirect Storage, past the host's memory. `automatic` measures which is
/// faster; `on` is an error where it does not work; `off` uses pinned host buffers. The result is the same.
enum class GdsMode { automatic, on, off };

struct DeviceConfig {
  /// Numbers of CUDA devices, each at most once; empty: the CPU.
  std::vector<int> cuda;
  /// Memory to use on each device; unset: 90 % of what is free when the run starts. It does not change the result.
  std::optional<std::uint64_t> memory_budget;
  DevicePrecision precision = DevicePrecision::float32;
  DeviceLayout layout = DeviceLayout::automatic;
  GdsMode gds = GdsMode::automatic;
  /// Samples go to a device from memory of the host that is pinned, so that their copies go on beside the work. Without
  /// it the host waits for each; it is for machines that limit locked memory. The result is the same.
  bool pin_memory = true;

  bool is_cpu() const noexcept { return cuda.empty(); }
};

/// Parses "cpu", "cuda" (the first device), "cuda:1" or "cuda:0,cuda:2". Throws usage for anything else.
std::vector<int> parse_devices(std::string_view text);

}  // namespace detent
