// How long runs tell of themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace detent {

/// Told of progress: stage name, work done, work in all (0: not known).
using Progress = std::function<void(const std::string& stage, std::uint64_t done, std::uint64_t total)>;

}  // namespace detent
