// In place of the library's: measuring the machine takes longer than all else that a plan does, and differs each time.
#include "profile/machine.h"

namespace detent::profile {

MachinePeaks measure_machine(int threads, const std::filesystem::path&) noexcept { return {1e10, 1e10, 1e9, threads}; }

}  // namespace detent::profile
