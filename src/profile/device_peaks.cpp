#include "profile/device_peaks.h"

#include <exception>

#include "shim/library.h"

namespace detent::profile {

DevicePeaks measure_cuda(int device, DevicePrecision precision) noexcept {
  try {
    const auto plugin = shim::load_cuda_plugin({});
    const PeaksCalls* calls = reinterpret_cast<PeaksEntry*>(plugin.symbol(kPeaksEntryName))(kPeaksVersion);
    return calls == nullptr ? DevicePeaks() : calls->measure(device, precision);
  } catch (const std::exception&) {  // the run is over; only a figure is lost
    return {};
  }
}

}  // namespace detent::profile
