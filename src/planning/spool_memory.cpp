#include "planning/spool_memory.h"

#include <algorithm>

#include "planning/parts.h"

namespace detent::planning {

SpoolMemory split_budget(std::uint64_t room, std::uint64_t counted) {
  const std::uint64_t more = std::min(kMostBuffers - std::min(kMostBuffers, counted), room / 4);
  return {room - more, counted + more};
}

}  // namespace detent::planning
