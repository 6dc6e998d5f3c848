// What a GPU's driver tells.
#pragma once

#include <cstdint>

namespace detent::profile {

struct GpuMemory {
  std::uint64_t bytes = 0;
  /// False: used by all programs on all devices that this machine or container shows. That is the answer where the
  /// driver does not tell which process uses what, and in a container where it tells by numbers of the host.
  bool of_this_process = false;
  /// Percent of the last moments (up to a second) in which a kernel ran on the busiest device, whoever's it was; 0
  /// where the driver does not tell.
  unsigned busy_percent = 0;
};

}  // namespace detent::profile
