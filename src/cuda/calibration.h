// What the plugin offers to calibration/.
#pragma once

#include "calibration/open_device.h"

namespace detent::cuda {

const calibration::CalibrationCalls& calibration_calls();

}  // namespace detent::cuda
