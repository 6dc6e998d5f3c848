// How a spool shares out what memory leaves for it.
#pragma once

#include <cstdint>

namespace detent::planning {

struct SpoolMemory {
  std::uint64_t records = 0;  // for those that stay in memory
  std::uint64_t buffers = 0;  // for those on their way to disk and back
};

/// Room of which anything may go to disk: a quarter of it joins the buffers that the plan has `counted` already.
SpoolMemory split_budget(std::uint64_t room, std::uint64_t counted);

}  // namespace detent::planning
