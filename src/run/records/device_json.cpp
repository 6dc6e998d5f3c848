#include "run/records/device_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/bytes.h"

namespace detent::run {
namespace {

using nlohmann::json;
using profile::DeviceLane;

constexpr std::string_view kObservers = "observers";  // as the plugin calls them

double rate_of(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

profile::DeviceTotal observers_of(const profile::DeviceActivity& activity) {
  for (const auto& total : activity.totals()) {
    if (total.lane == DeviceLane::compute && total.what == kObservers) return total;
  }
  return {};
}

double observers_rate(const profile::DeviceTotal& observers) {
  return rate_of(static_cast<double>(observers.amount.bytes), observers.seconds);
}

profile::Work work_of(const profile::DeviceTotal& total) {
  profile::Work work{.seconds = total.seconds, .flops = total.amount.flops};
  const auto bytes = static_cast<double>(total.amount.bytes);
  if (total.lane == DeviceLane::compute) work.memory_bytes = bytes;
  if (total.lane == DeviceLane::copy) work.bus_bytes = bytes;
  if (total.lane == DeviceLane::read) work.disk_bytes = bytes;
  return work;
}

json work_json(const RunReport& report, const profile::DeviceActivity& activity) {
  json all = json::array();
  for (const auto& total : activity.totals()) {
    json entry{{"device", total.device},
               {"lane", profile::lane_name(total.lane)},
               {"name", total.what},
               {"count", total.count},
               {"seconds", number(total.seconds)},
               {"bytes", total.amount.bytes},
               {"flops", number(total.amount.flops)}};
    if (total.lane != DeviceLane::gather) {
      const auto verdict = verdict_of(work_of(total), peaks_of(report), profile::kCalibrationOnGpu);
      entry["bound"] = verdict["bound"];
      entry["share"] = verdict["share"];
    }
    all.push_back(std::move(entry));
  }
  return all;
}

json devices_json(const profile::DeviceActivity& activity) {
  json all = json::array();
  for (const auto& use : activity.devices()) {
    all.push_back({{"number", use.number},
                   {"name", use.name},
                   {"memory_budget_bytes", use.memory_budget},
                   {"memory_foretold_bytes", use.memory_foretold},
                   {"memory_peak_bytes", use.memory_peak}});
    if (!use.storage.empty()) all.back()["storage"] = use.storage;
  }
  return all;
}

}  // namespace

json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json verdict_of(const profile::Work& work, const profile::MachinePeaks& peaks, std::string_view stage) {
  const auto verdict = profile::find_bottleneck(work, peaks, stage);
  return {{"bound", profile::bound_name(verdict.bound)}, {"share", number(verdict.share)}, {"advice", verdict.advice}};
}

profile::MachinePeaks peaks_of(const RunReport& report) {
  profile::MachinePeaks peaks = report.machine;
  peaks.flops_per_second = report.device->peaks.flops_per_second;
  peaks.memory_bytes_per_second = report.device->peaks.memory_bytes_per_second;
  peaks.bus_bytes_per_second = report.device->peaks.bus_bytes_per_second;
  return peaks;
}

profile::Work tuning_work(const profile::StageTime& stage, const profile::DeviceActivity& activity) {
  profile::Work all{.seconds = stage.seconds, .disk_bytes = static_cast<double>(stage.disk_read + stage.disk_written)};
  const auto devices = static_cast<double>(std::max<std::size_t>(activity.devices().size(), 1));
  for (const auto& total : activity.totals()) {
    if (total.what == kObservers) continue;
    const profile::Work work = work_of(total);
    all.flops += work.flops / devices;
    all.memory_bytes += work.memory_bytes / devices;
    all.bus_bytes += work.bus_bytes / devices;
  }
  return all;
}

json device_json(const RunReport& report, const profile::DeviceActivity& activity) {
  const auto& device = *report.device;
  const auto& peaks = device.peaks;
  json out{{"number", device.config.cuda.front()},
           {"flops_per_second", number(peaks.flops_per_second)},
           {"memory_bytes_per_second", number(peaks.memory_bytes_per_second)},
           {"bus_bytes_per_second", number(peaks.bus_bytes_per_second)},
           {"devices", devices_json(activity)},
           {"work", work_json(report, activity)}};
  if (!device.calibration) return out;
  const auto observers = observers_of(activity);
  out.update({{"observers_seconds", number(observers.seconds)},
              {"observed_bytes", device.calibration->observing.bytes},
              {"observers_bytes_per_second", number(observers_rate(observers))},
              {"bytes_to_device", device.calibration->input_bytes},
              {"bytes_to_host", device.calibration->observing.bytes_to_host},
              {"nodes_on_host", device.calibration->nodes}});
  return out;
}

std::string observers_text(const RunReport& report, const profile::DeviceActivity& activity) {
  const auto& observing = report.device->calibration->observing;
  const double rate = observers_rate(observers_of(activity)), peak = report.device->peaks.memory_bytes_per_second;
  const std::string share =
      peak > 0 ? fmt::format(" ({:.0f} % of a copy's {:.0f})", 100 * rate / peak, peak / 1e9) : "";
  return fmt::format(
      "the observers read {} on the GPU at {:.0f} GB/s{}, and {} of their counts were copied to the host",
      format_size(observing.bytes), rate / 1e9, share, format_size(observing.bytes_to_host));
}

}  // namespace detent::run
