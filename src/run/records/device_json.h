// GPU work of a run, for the HTML report.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "profile/device_activity.h"
#include "profile/roofline.h"
#include "run/records/run_report.h"

namespace detent::run {

/// JSON has no infinities.
nlohmann::json number(double value);

/// Bound, share and advice.
nlohmann::json verdict_of(const profile::Work& work, const profile::MachinePeaks& peaks, std::string_view stage);

/// The device's peaks in place of the host's. The report must have a device.
profile::MachinePeaks peaks_of(const RunReport& report);

/// Fine-tuning work of the devices in this stage, per device; compare with peaks_of().
profile::Work tuning_work(const profile::StageTime& stage, const profile::DeviceActivity& activity);

/// The key "device" of the page. The report must have a device.
nlohmann::json device_json(const RunReport& report, const profile::DeviceActivity& activity);

/// How fast the observers of a calibration read, in one sentence. The report must have one on a device.
std::string observers_text(const RunReport& report, const profile::DeviceActivity& activity);

}  // namespace detent::run
