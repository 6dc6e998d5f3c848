// The plugin's devices, for calibration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "calibration/device_observers.h"
#include "profile/device_activity.h"

namespace detent::calibration {

struct DeviceRequest {
  int number = 0;
  /// Bytes of its memory: for the counters, and what they leave for the runtime. Unset: 90 % of what is free for the
  /// counters, and the runtime takes what it needs.
  std::optional<std::uint64_t> memory_budget;
  bool tf32 = false;     // see shim::Device
  std::size_t taps = 0;  // at most at a time
  bool tables = false;   // whether there will be any
  bool pins = true;      // DeviceConfig::pin_memory
  /// Told of what is done there, with times; must outlive the device. Null: nothing is timed.
  profile::DeviceActivity* activity = nullptr;
};

/// Loads the plugin and opens the device. Throws device where there is none, or another version of the plugin; resource
/// where the budget does not hold the counters.
std::unique_ptr<CalibrationDevice> open_cuda(const DeviceRequest& request);

/// What the plugin offers this room, by its entry symbol.
struct CalibrationCalls {
  std::unique_ptr<CalibrationDevice> (*open)(const DeviceRequest& request);
};
using CalibrationEntry = const CalibrationCalls*(int version);  // null: the plugin is of another version
inline constexpr const char* kCalibrationEntryName = "detent_cuda_calibration";
/// Raised when anything above changes, or in device_observers.h. Plugin and binary come from the same compiler.
inline constexpr int kCalibrationVersion = 3;

}  // namespace detent::calibration
