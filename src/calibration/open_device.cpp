#include "calibration/open_device.h"

#include <fmt/format.h>

#include "base/error.h"
#include "shim/library.h"

namespace detent::calibration {

std::unique_ptr<CalibrationDevice> open_cuda(const DeviceRequest& request) {
  const auto plugin = shim::load_cuda_plugin({});
  const auto entry = reinterpret_cast<CalibrationEntry*>(plugin.symbol(kCalibrationEntryName));
  const CalibrationCalls* calls = entry(kCalibrationVersion);
  if (calls == nullptr) {
    throw device_error(fmt::format("the plugin '{}' is of another version than this detent", plugin.name()),
                       "use the libdetent_cuda.so that was built with it");
  }
  return calls->open(request);
}

}  // namespace detent::calibration
