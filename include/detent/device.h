// Where the heavy arithmetic runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace detent {

/// In what numbers a GPU multiplies. Sums are float32 in all of them, and sums over samples are made of float32 only.
enum class DevicePrecision { float32, tf32, bfloat16 };

/// The layout that a GPU's convolutions work in. `automatic` times both for each shape: the faster one may differ from
/// run to run, and with it the last bits of the sums.
enum class DeviceLayout { automatic, nchw, nhwc };

/// Whether a GPU reads stored samples past the host's memory (GPUDirect Storage). `automatic` measures; `on` is an
/// error where it does not work; `off` goes through pinned buffers of the host. The bytes are the same.
enum class GdsMode { automatic, on, off };

struct DeviceConfig {
  /// CUDA devices by their numbers, none twice; empty: the CPU.
  std::vector<int> cuda;
  /// Memory to take on each of them; unset: 90 % of what is free when the run starts. It does not change the result.
  std::optional<std::uint64_t> memory_budget;
  DevicePrecision precision = DevicePrecision::float32;
  DeviceLayout layout = DeviceLayout::automatic;
  GdsMode gds = GdsMode::automatic;

  bool is_cpu() const noexcept { return cuda.empty(); }
};

/// Devices of a text: "cpu", "cuda" (the first), "cuda:1", "cuda:0,cuda:2". Throws usage for anything else.
std::vector<int> parse_devices(std::string_view text);

}  // namespace detent
