#include "profile/device_activity.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace detent::profile {

std::string_view lane_name(DeviceLane lane) noexcept {
  switch (lane) {
    case DeviceLane::gather: return "gather";
    case DeviceLane::read: return "read";
    case DeviceLane::copy: return "copy";
    case DeviceLane::compute: return "compute";
  }
  return "unknown";
}

double DeviceActivity::seconds_at(Clock::time_point moment) const noexcept {
  return std::chrono::duration<double>(moment - start_).count();
}

void DeviceActivity::begin_run() {
  const std::lock_guard lock(mutex_);
  totals_.clear();
  for (auto& [number, use] : devices_) use.use = {.number = number, .name = "", .storage = ""};
}

void DeviceActivity::begin(std::string work, std::size_t most) {
  const std::lock_guard lock(mutex_);
  work_ = std::move(work);
  // A part of what is left, so that there is something left for whatever comes.
  constexpr std::size_t kShare = 32;
  most_ = std::min(most, (kMostSpans - std::min(spans_.size(), kMostSpans)) / kShare);
  kept_here_.clear();
}

void DeviceActivity::add(int device, DeviceLane lane, std::string_view what, double start, double seconds,
                         DeviceAmount amount) {
  const std::lock_guard lock(mutex_);
  DeviceTotal& total = totals_[Kind(device, lane, what)];
  ++total.count;
  total.seconds += seconds;
  total.amount.bytes += amount.bytes;
  total.amount.flops += amount.flops;
  if (lane == DeviceLane::copy) counters_.bus_bytes += amount.bytes;
  if (lane == DeviceLane::read) counters_.storage_bytes += amount.bytes;
  std::size_t& kept = kept_here_[{device, lane}];
  if (kept >= most_ || spans_.size() >= kMostSpans) return;
  ++kept;
  spans_.push_back({work_.empty() ? std::string(what) : fmt::format("{}: {}", what, work_), start, seconds,
                    fmt::format("cuda:{} {}", device, lane_name(lane))});
}

DeviceActivity::Use& DeviceActivity::use_of(int number) {
  Use& use = devices_[number];
  use.use.number = number;
  return use;
}

// A device may be opened once for calibration and once for fine-tuning.
void DeviceActivity::add_device(int number, std::string name, std::uint64_t memory_budget) {
  const std::lock_guard lock(mutex_);
  Use& use = use_of(number);
  use.use.name = std::move(name);
  use.use.memory_budget = std::max(use.use.memory_budget, memory_budget);
}

void DeviceActivity::add_memory_estimate(int number, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  DeviceUse& use = use_of(number).use;
  use.memory_foretold = std::max(use.memory_foretold, bytes);
}

void DeviceActivity::set_memory(int number, std::uint64_t used) {
  const std::lock_guard lock(mutex_);
  Use& use = use_of(number);
  counters_.memory += used - use.memory;
  counters_.memory_peak = std::max(counters_.memory_peak, counters_.memory);
  use.memory = used;
  use.use.memory_peak = std::max(use.use.memory_peak, used);
}

void DeviceActivity::set_storage(int number, std::string how) {
  const std::lock_guard lock(mutex_);
  use_of(number).use.storage = std::move(how);
}

DeviceActivity::Counters DeviceActivity::counters() {
  const std::lock_guard lock(mutex_);
  const Counters now = counters_;
  counters_.memory_peak = counters_.memory;
  return now;
}

std::vector<TraceSpan> DeviceActivity::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

std::vector<DeviceTotal> DeviceActivity::totals() const {
  const std::lock_guard lock(mutex_);
  std::vector<DeviceTotal> totals;
  for (const auto& [kind, total] : totals_) {
    totals.push_back(total);
    std::tie(totals.back().device, totals.back().lane, totals.back().what) = kind;
  }
  return totals;
}

std::vector<DeviceUse> DeviceActivity::devices() const {
  const std::lock_guard lock(mutex_);
  std::vector<DeviceUse> uses;  // those that this run has opened
  for (const auto& [number, use] : devices_) {
    if (!use.use.name.empty()) uses.push_back(use.use);
  }
  return uses;
}

}  // namespace detent::profile
