#include "run/calibration_device.h"

#include <fmt/format.h>

#include <utility>

#include "calibration/open_device.h"

namespace detent::run {

DeviceCalibration::DeviceCalibration(const DeviceConfig& config, std::size_t taps, bool histograms,
                                     std::filesystem::path directory, profile::DeviceActivity* activity)
    : config_(config), use_{.directory = std::move(directory), .nodes = {}} {
  if (config.is_cpu()) return;
  device_ = calibration::open_cuda({.number = config.cuda.front(),
                                    .memory_budget = config.memory_budget,
                                    .tf32 = config.precision == DevicePrecision::tf32,
                                    .taps = taps,
                                    .tables = histograms,
                                    .pins = config.pin_memory,
                                    .activity = activity});
  constexpr std::size_t kSpans = 1024;  // observers of the first samples
  if (activity != nullptr) activity->begin("calibration", kSpans);
}

void DeviceCalibration::lend(CollectOptions& options) {
  options.device = device_.get();
  options.on_device = &use_;
}

std::vector<std::string> DeviceCalibration::notes() const {
  return device_ ? device_notes(config_, *device_, use_) : std::vector<std::string>();
}

std::shared_ptr<const shim::Device> inference_device_of(const DeviceConfig& config, unsigned shares) {
  if (config.is_cpu()) return nullptr;
  auto place = std::make_shared<shim::Device>();
  place->ordinal = config.cuda.front();
  place->memory_limit = config.memory_budget.value_or(0) / shares;
  place->tf32 = config.precision == DevicePrecision::tf32;
  return place;
}

std::shared_ptr<const shim::Device> inference_device_of(const DeviceConfig& config, const exec::Runtime& runtime,
                                                        unsigned shares) {
  auto place = inference_device_of(config, shares);
  return place && runtime.has_provider(place->provider) ? place : nullptr;
}

std::string inference_device_note(const DeviceConfig& config, const exec::Runtime& runtime, std::string_view passes) {
  const auto place = inference_device_of(config);
  if (!place) return {};
  if (!runtime.has_provider(place->provider))
    return fmt::format("{} ran on the CPU: this ONNX Runtime was built without {}", passes, place->provider);
  return fmt::format("{} ran on cuda:{}", passes, place->ordinal);
}

std::vector<std::string> device_notes(const DeviceConfig& config, const calibration::CalibrationDevice& device,
                                      const OnDevice& use) {
  std::vector<std::string> notes;
  std::string line = "calibration ran on " + device.name();
  if (config.cuda.size() > 1) line += ", the first of the devices";
  if (config.precision == DevicePrecision::bfloat16) line += ", in float32";
  notes.push_back(std::move(line));
  if (use.nodes.empty()) return notes;
  std::string types;
  std::size_t count = 0;
  for (const auto& [type, nodes] : use.nodes) {
    count += nodes;
    types += fmt::format("{}{} {}", types.empty() ? "" : ", ", nodes, type);
  }
  notes.push_back(fmt::format(
      "ONNX Runtime ran {} node{} on the CPU nevertheless ({}), with {} {} between it and the device in each run",
      count, count == 1 ? "" : "s", types, use.copies, use.copies == 1 ? "copy" : "copies"));
  return notes;
}

}  // namespace detent::run
