// Progress of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace detent {

/// Called with the stage name, the work done and the total work (0: unknown).
using Progress = std::function<void(const std::string& stage, std::uint64_t done, std::uint64_t total)>;

}  // namespace detent
