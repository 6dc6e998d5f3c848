// Passes on a GPU: choice of the device, and notes for the user.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "calibration/device_observers.h"
#include "detent/device.h"
#include "profile/device_activity.h"
#include "run/collect.h"

namespace detent::run {

/// The GPU's part of one calibration; does nothing when the CPU calibrates.
class DeviceCalibration {
 public:
  /// Opens the first of the devices for observing `taps` values. `directory` is for working files; `activity` may be
  /// null, see DeviceRequest. Throws as calibration::open_cuda().
  DeviceCalibration(const DeviceConfig& config, std::size_t taps, bool histograms, std::filesystem::path directory,
                    profile::DeviceActivity* activity);

  /// Makes collect() use it; it must outlive that call.
  void lend(CollectOptions& options);
  /// What ran on the GPU and what did not, one sentence each.
  std::vector<std::string> notes() const;
  /// Null for the CPU.
  const OnDevice* use() const { return device_ ? &use_ : nullptr; }

 private:
  const DeviceConfig& config_;
  std::unique_ptr<calibration::CalibrationDevice> device_;
  OnDevice use_;
};

/// Where the model's nodes run in passes that are not calibration: on the first of the devices, with `shares` of them
/// using its memory at a time. Null: on the CPU, where none is given.
std::shared_ptr<const shim::Device> inference_device_of(const DeviceConfig& config, unsigned shares = 1);
/// The same where the runtime has the provider of that device; without it they run on the CPU, as
/// inference_device_note() tells.
std::shared_ptr<const shim::Device> inference_device_of(const DeviceConfig& config, const exec::Runtime& runtime,
                                                        unsigned shares = 1);
/// Of `passes`, such as "trials"; empty where no device is given.
std::string inference_device_note(const DeviceConfig& config, const exec::Runtime& runtime, std::string_view passes);

/// The notes of a calibration on `device`.
std::vector<std::string> device_notes(const DeviceConfig& config, const calibration::CalibrationDevice& device,
                                      const OnDevice& use);

}  // namespace detent::run
