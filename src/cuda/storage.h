// What the plugin offers to store/.
#pragma once

#include "store/open_device.h"

namespace detent::cuda {

const store::StorageCalls& storage_calls();

}  // namespace detent::cuda
