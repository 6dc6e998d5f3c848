// Time and memory of a stage of a run.
#pragma once

#include <cstdint>
#include <string>

namespace detent {

/// Time and memory of a stage.
struct StageReport {
  std::string name;
  double seconds = 0;
  std::uint64_t peak_memory = 0;  // [bytes]
};

}  // namespace detent
